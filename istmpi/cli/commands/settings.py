"""``istmpi settings``: all that a run file may say, on the screen, as a page and for editors."""

import json
from collections.abc import Sequence

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from istmpi.cli.completion import complete_names
from istmpi.config import Setting, every_setting
from istmpi.errors import ConfigError, did_you_mean
from istmpi.report.settings import markdown, schema, shown_default


@click.command("settings")
@click.argument("name", required=False, shell_complete=complete_names)
@click.option("--schema", "as_schema", is_flag=True, help="Print a JSON Schema of run files, for editors.")
@click.option("--markdown", "as_page", is_flag=True, help="Print docs/settings.md.")
def command(name: str | None, as_schema: bool, as_page: bool) -> None:
    """List the settings of a run, or describe NAME: a setting, a section, a method or a network.

    \b
    istmpi settings
    istmpi settings method.redeal
    istmpi settings transformer
    istmpi settings --schema > run.schema.json

    A run file has them as SECTION and KEY, a command line as --set SECTION.KEY=VALUE.
    """
    if sum((bool(name), as_schema, as_page)) > 1:
        raise click.UsageError("NAME, --schema and --markdown do not go with each other; give one.")
    if as_schema:
        click.echo(json.dumps(schema(), indent=1, ensure_ascii=False))
    elif as_page:
        click.echo(markdown(), nl=False)
    elif name:
        _describe(_found(name))
    else:
        _list([*every_setting()])


def _found(name: str) -> list[Setting]:
    """The settings that a name stands for: by itself, by its key alone, or by the section or owner of several."""
    settings = [*every_setting()]
    keys = {one.name.rpartition(".")[2] for one in settings}
    sections = {one.name.rpartition(".")[0] for one in settings}
    owners = {one.owner for one in settings}
    wanted = name.strip("[]")
    for fits in (
        lambda one: one.name == wanted,
        lambda one: one.name.rpartition(".")[0] == wanted,
        lambda one: one.owner == wanted,
        lambda one: one.name.rpartition(".")[2] == wanted,
    ):
        if wanted and (found := [one for one in settings if fits(one)]):
            return found
    known = [*dict.fromkeys(one.name for one in settings), *sorted({*sections, *owners, *keys} - {""})]
    near = did_you_mean(wanted, known)
    raise ConfigError(f"no setting {name}{near if near.endswith('?') else '. All of them: istmpi settings'}")


def _list(settings: Sequence[Setting]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for one in settings:
        whose = f"{one.owner}: " if one.owner else ""
        limits = f" ({one.range})" if one.range else ""
        table.add_row(f"[bold]{one.name}", escape(shown_default(one)), escape(whose + one.help + limits))
    Console(emoji=False, soft_wrap=True).print(table)


def _describe(settings: Sequence[Setting]) -> None:
    for number, one in enumerate(settings):
        if number:
            click.echo()
        click.echo(click.style(one.name, bold=True) + (f"  ({one.owner})" if one.owner else ""))
        click.echo(f"  {one.help}")
        facts = {"type": one.kind, "range": one.range, "default": shown_default(one) or "none"}
        for what, said in facts.items():
            if said:
                click.echo(f"  {what + ':':8} {said}")
