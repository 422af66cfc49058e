"""The offers of a shell behind TAB: names of settings, and the values that they may have.

eval "$(_ISTMPI_COMPLETE=bash_source istmpi)"
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from istmpi.config import every_setting, shipped
from istmpi.methods import METHODS
from istmpi.record import SETTINGS
from istmpi.settings import choices_of

PATHS = {"data.source": "digits", "output.folder": "", "model.name": "", "train.init": "", "method.shares": "auto"}
"""Settings that are paths, with a word that they may be instead; a network's names are known from its type."""


def complete_values(setting: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """A completer of a setting's values."""
    return lambda context, parameter, typed: _values(setting, typed)


def complete_names(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Names of settings, sections, methods and networks."""
    names = {setting.name: setting.help for setting in every_setting()}
    names |= {name.rpartition(".")[0]: "" for name in names if "." in name}
    return _beginning(typed, names | {setting.owner: "" for setting in every_setting() if setting.owner})


def complete_assignment(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Words for --set: the name of a setting up to its =, or behind it its values."""
    name, equals, value = typed.partition("=")
    if equals:
        return [CompletionItem(f"{name}={item.value}") for item in _values(name, value) if item.type == "plain"]
    return _beginning(typed, {f"{setting.name}=": setting.help for setting in every_setting()})


def complete_runs(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """The runs that ship and those in runs/, or files."""
    folders = sorted(str(path.parent) for path in Path("runs").glob(f"*/{SETTINGS}"))
    names = [*shipped(), *sorted(map(str, Path().glob("*.toml"))), *folders]
    return _beginning(typed, dict.fromkeys(names, "")) or [CompletionItem("", type="file")]


def _values(setting: str, typed: str) -> list[CompletionItem]:
    names = {choice: "" for each in every_setting() if each.name == setting for choice in choices_of(each.hint)}
    if setting == "method.name":
        names = {name: spec.summary for name, spec in METHODS.items()}
    elif setting == "method.finish":
        names = {f"{name}:10%": spec.summary for name, spec in METHODS.items() if not spec.in_passes}
    elif setting == "train.threads":
        names = {"auto": ""}
    if word := PATHS.get(setting):
        names[word] = ""
    offered = _beginning(typed, names)
    if not offered and setting in PATHS:
        return [CompletionItem("", type="dir" if setting == "output.folder" else "file")]
    return offered


def _beginning(typed: str, names: Mapping[str, str]) -> list[CompletionItem]:
    return [CompletionItem(name, help=help or None) for name, help in names.items() if name.startswith(typed)]
