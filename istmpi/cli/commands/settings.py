"""List and describe the settings of a run file; print a schema for editors."""

import json
import os
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import click
from rich.text import Text

from istmpi.cli.output import console, table
from istmpi.config import Setting, every_setting
from istmpi.environment import VARIABLES
from istmpi.errors import ConfigError, did_you_mean
from istmpi.foreign import one_line
from istmpi.settings import schema_of

SCHEMA = "http://json-schema.org/draft-07/schema#"

_PAGE = """# Settings

A run file has these settings. `istmpi settings NAME` prints one; `--set NAME=VALUE` sets it on the command line.
Settings that a run leaves out have their defaults. *Made from the code by `istmpi settings --markdown`; do not edit.*

Editors complete names and values and mark mistakes with [run.schema.json](run.schema.json), the output of `istmpi
settings --schema`. Begin a run file with that file's address or absolute path (`file:///...`) for taplo (Even
Better TOML in VS Code, Helix, Zed):

```toml
#:schema https://host/path/run.schema.json
```

"""


@click.command("settings")
@click.argument("name", required=False)
@click.option(
    "--schema", "as_schema", is_flag=True, help="Print a JSON Schema of run files, for editors."
)
@click.option("--markdown", "as_page", is_flag=True, help="Print docs/settings.md.")
@click.option("--environment", is_flag=True, help="List the environment variables of istmpi's own.")
def command(name: str | None, as_schema: bool, as_page: bool, environment: bool) -> None:
    """List the settings of a run, or describe NAME: a setting, a section, a method or a network.

    \b
    istmpi settings
    istmpi settings method.redeal
    istmpi settings transformer
    istmpi settings --schema > run.schema.json

    A run file sets KEY in [SECTION]; a command line has --set SECTION.KEY=VALUE.
    """
    if sum((bool(name), as_schema, as_page, environment)) > 1:
        raise click.UsageError(
            "NAME, --schema, --markdown and --environment do not go with each other; give one."
        )
    if as_schema:
        click.echo(json.dumps(schema(), indent=1, ensure_ascii=False))
    elif as_page:
        click.echo(markdown(), nl=False)
    elif environment:
        _list_variables()
    elif name:
        click.echo("\n\n".join(map(_description, _named(name.strip("[]")))))
    else:
        _list([*every_setting()])


def _named(name: str) -> list[Setting]:
    """Return the settings with this name or, in turn, section, owner (method, network) or key.
    ConfigError if none."""
    settings = [*every_setting()]
    names_of = (
        lambda setting: setting.name,
        lambda setting: setting.name.rpartition(".")[0],
        lambda setting: setting.owner,
        lambda setting: setting.name.rpartition(".")[2],
    )
    for name_of in names_of:
        if name and (named := [setting for setting in settings if name_of(setting) == name]):
            return named
    every = dict.fromkeys(
        name_of(setting) for name_of in names_of for setting in settings if name_of(setting)
    )
    near = did_you_mean(name, list(every))
    raise ConfigError(
        f"no setting {name}{near if near.endswith('?') else '. List all: istmpi settings'}"
    )


def _list(settings: Sequence[Setting]) -> None:
    listing = table()
    for setting in settings:
        owner = f"{setting.owner}: " if setting.owner else ""
        limits = f" ({setting.range})" if setting.range else ""
        listing.add_row(
            Text(setting.name, "bold"), shown_default(setting), f"{owner}{setting.help}{limits}"
        )
    console(soft_wrap=True).print(listing)


def _list_variables() -> None:
    for name, (reader, default, help) in VARIABLES.items():
        here = f"; here {one_line(os.environ[name])}" if name in os.environ else ""
        click.echo(f"{click.style(name, bold=True)}  {help}\n  {reader}; default {default}{here}")


def _description(setting: Setting) -> str:
    lines = [
        click.style(setting.name, bold=True) + (f"  ({setting.owner})" if setting.owner else "")
    ]
    facts = {
        "type": setting.kind,
        "range": setting.range,
        "default": shown_default(setting) or "none",
    }
    lines += [
        f"  {setting.help}",
        *(f"  {name + ':':8} {fact}" for name, fact in facts.items() if fact),
    ]
    return "\n".join(lines)


def shown_default(setting: Setting) -> str:
    return "" if setting.default is None else json.dumps(setting.default)


def markdown() -> str:
    page = _PAGE
    for section, settings in groupby(every_setting(), key=_section):
        for owner, group in groupby(
            settings, key=lambda setting: setting.owner if section == "model" else ""
        ):
            heading = (
                f"[{section}]" + f" of {owner}" * bool(owner) if section else "Outside sections"
            )
            page += f"## {heading}\n\n"
            page += "| setting | type | default | range | what it is |\n| --- | --- | --- | --- | --- |\n"
            page += "".join(_row(setting, section) for setting in group) + "\n"
    return page.rstrip("\n") + "\n"


def _section(setting: Setting) -> str:
    return setting.name.rpartition(".")[0]


def _row(setting: Setting, section: str) -> str:
    owner = f"*{setting.owner}.* " if setting.owner and section == "method" else ""
    default = f"`{shown_default(setting)}`" if setting.default is not None else ""
    limits, help_text = (text.replace("|", "\\|") for text in (setting.range, setting.help))
    return f"| `{setting.name}` | {setting.kind} | {default} | {limits} | {owner}{help_text} |\n"


def schema() -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for section, group in groupby(every_setting(), key=_section):
        settings = list(group)
        if not section:
            properties |= {setting.name: schema_of(setting.hint) for setting in settings}
        else:
            common = [setting for setting in settings if section != "model" or not setting.owner]
            keys = {
                setting.name.rpartition(".")[2]: schema_of(setting.hint, setting.default)
                for setting in common
            }
            properties[section] = _closed(keys)
            if section == "model":
                del properties[section][
                    "additionalProperties"
                ]  # each network has settings of its own
    return {"$schema": SCHEMA, "title": "A run of istmpi", **_closed(properties)}


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}
