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
from istmpi.settings import write_schema

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
        click.echo(write_markdown(), nl=False)
    elif environment:
        _list_variables()
    elif name:
        click.echo("\n\n".join(map(_describe, _find(name.strip("[]")))))
    else:
        _list([*every_setting()])


def _find(name: str) -> list[Setting]:
    """Return the settings with this name or, in turn, section, owner (method, network) or key.

    Raises ConfigError if there are none.
    """
    settings = [*every_setting()]
    names: dict[str, None] = {}
    for read_name in (_full_name, _section, _owner, _key):
        named = [setting for setting in settings if read_name(setting) == name]
        # Some settings have neither section nor owner: an empty name would find them.
        if name and named:
            return named
        names |= dict.fromkeys(filter(None, map(read_name, settings)))
    near = did_you_mean(name, list(names))
    cure = near if near.endswith("?") else ". List all: istmpi settings"
    raise ConfigError(f"no setting {name}{cure}")


def _full_name(setting: Setting) -> str:
    return setting.name


def _section(setting: Setting) -> str:
    return setting.name.rpartition(".")[0]


def _owner(setting: Setting) -> str:
    return setting.owner


def _key(setting: Setting) -> str:
    return setting.name.rpartition(".")[2]


def _list(settings: Sequence[Setting]) -> None:
    listing = table()
    for setting in settings:
        words = setting.help
        if setting.owner:
            words = f"{setting.owner}: {words}"
        if setting.range:
            words += f" ({setting.range})"
        listing.add_row(Text(setting.name, "bold"), show_default(setting), words)
    console(soft_wrap=True).print(listing)


def _list_variables() -> None:
    for name, (reader, default, help) in VARIABLES.items():
        words = f"{reader}; default {default}"
        if name in os.environ:
            words += f"; here {one_line(os.environ[name])}"
        click.echo(f"{click.style(name, bold=True)}  {help}\n  {words}")


def _describe(setting: Setting) -> str:
    title = click.style(setting.name, bold=True)
    if setting.owner:
        title += f"  ({setting.owner})"
    lines = [title, f"  {setting.help}"]
    facts = {
        "type": setting.kind,
        "range": setting.range,
        "default": show_default(setting) or "none",
    }
    for name, fact in facts.items():
        if fact:
            lines.append(f"  {name + ':':8} {fact}")
    return "\n".join(lines)


def show_default(setting: Setting) -> str:
    if setting.default is None:
        return ""
    return json.dumps(setting.default)


def write_markdown() -> str:
    """Return the page docs/settings.md."""
    page = _PAGE
    # Settings come in the order of their sections, so each section is one group.
    for section, settings in groupby(every_setting(), key=_section):
        for owner, group in groupby(settings, key=_owner_of_table):
            heading = f"[{section}]" if section else "Outside sections"
            if owner and section:
                heading += f" of {owner}"
            page += f"## {heading}\n\n"
            page += "| setting | type | default | range | what it is |\n"
            page += "| --- | --- | --- | --- | --- |\n"
            page += "".join(_row(setting, section) for setting in group) + "\n"
    return page.rstrip("\n") + "\n"


def _owner_of_table(setting: Setting) -> str:
    """Return the owner whose settings have a table of their own: a network, not a method."""
    return setting.owner if _section(setting) == "model" else ""


def _row(setting: Setting, section: str) -> str:
    owner = ""
    if setting.owner and section == "method":
        owner = f"*{setting.owner}.* "
    default = ""
    if setting.default is not None:
        default = f"`{show_default(setting)}`"
    # A bar would end the cell.
    limits = setting.range.replace("|", "\\|")
    words = setting.help.replace("|", "\\|")
    return f"| `{setting.name}` | {setting.kind} | {default} | {limits} | {owner}{words} |\n"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of run files."""
    properties: dict[str, Any] = {}
    for section, group in groupby(every_setting(), key=_section):
        settings = list(group)
        if not section:
            properties |= {setting.name: write_schema(setting.hint) for setting in settings}
            continue
        keys = {}
        for setting in settings:
            if section != "model" or not setting.owner:
                keys[_key(setting)] = write_schema(setting.hint, setting.default)
        properties[section] = _close_object(keys)
        if section == "model":
            # Each network has settings of its own.
            del properties[section]["additionalProperties"]
    return {"$schema": SCHEMA, "title": "A run of istmpi", **_close_object(properties)}


def _close_object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}
