"""``istmpi runs``: what can be trained without writing a run file, and what can be written in one."""

import json
from collections.abc import Iterator

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from istmpi.config import SHIPPED, every_setting, shipped
from istmpi.methods import METHODS
from istmpi.settings import help_of, range_of


@click.command("runs")
@click.option("--settings", "lists_settings", is_flag=True, help="List the settings that a run file may have.")
def command(lists_settings: bool) -> None:
    """List the runs that ship with istmpi: istmpi train NAME."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, *words in _settings() if lists_settings else _runs():
        table.add_row(f"[bold]{name}", *map(escape, words))
    Console(soft_wrap=True).print(table)


def _runs() -> Iterator[tuple[str, str]]:
    for name in shipped():
        yield name, SHIPPED.joinpath(f"{name}.toml").read_text().splitlines()[0].lstrip("# ")


def _settings() -> Iterator[tuple[str, str, str]]:
    """Every setting of a run with its default, and what it is: its owner, help and range."""
    owners = {f"method.{setting}": f"{spec.name}: " for spec in METHODS.values() for setting, *_ in spec.settings}
    for name, hint, default in every_setting():
        limits, shown = range_of(hint), "" if default is None else json.dumps(default)
        yield name, shown, owners.get(name, "") + help_of(hint) + f" ({limits})" * bool(limits)
