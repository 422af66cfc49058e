"""The settings of a run as a page, and as a JSON Schema with which editors check and complete run files."""

import json
from itertools import groupby
from typing import Any

from istmpi.config import Setting, every_setting
from istmpi.settings import schema_of

SCHEMA = "http://json-schema.org/draft-07/schema#"

_PAGE = """# Settings

The settings of a run file. `istmpi settings NAME` prints an entry, `--set NAME=VALUE` sets one on the command line.
Settings that a run leaves out have their defaults. *Made from the code by `istmpi settings --markdown`; do not edit.*

[run.schema.json](run.schema.json) (`istmpi settings --schema`) is the same for editors, which complete names and
values and mark mistakes. With taplo (Even Better TOML in VS Code, Helix, Zed), write as the first line of a run file

```toml
#:schema https://host/path/run.schema.json
```

with the address or the absolute path (`file:///...`) of that file.

"""


def shown_default(setting: Setting) -> str:
    """A setting's default as TOML has it; empty where it has none."""
    return "" if setting.default is None else json.dumps(setting.default)


def markdown() -> str:
    page = _PAGE
    for section, settings in groupby(every_setting(), key=_section):
        for owner, group in groupby(settings, key=lambda setting: setting.owner if section == "model" else ""):
            heading = f"[{section}]" + f" of {owner}" * bool(owner) if section else "Outside sections"
            page += (
                f"## {heading}\n\n| setting | type | default | range | what it is |\n| --- | --- | --- | --- | --- |\n"
            )
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
            keys = {setting.name.rpartition(".")[2]: schema_of(setting.hint, setting.default) for setting in common}
            properties[section] = _closed(keys)
            if section == "model":
                del properties[section]["additionalProperties"]  # each network has settings of its own
    return {"$schema": SCHEMA, "title": "A run of istmpi", **_closed(properties)}


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}
