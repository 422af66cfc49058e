"""What a shell offers behind TAB: names of settings, and the values that they may have.

eval "$(_ISTMPI_COMPLETE=bash_source istmpi)"
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from istmpi.config import every_setting, shipped
from istmpi.methods import METHODS
from istmpi.record import SETTINGS
from istmpi.settings import choices_of

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_FILES = CompletionItem("", type="file")
_FOLDERS = CompletionItem("", type="dir")
OF_FILES = {
    "data.source": ("digits",),
    "output.folder": (),
    "model.name": (),
    "train.init": (),
    "method.shares": ("auto",),
}
"""Settings that are paths, with what else they may be; of a network its names are known from its type."""


def complete_values(setting: str) -> Completer:
    """What completes the values of a setting."""

    def complete(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        return _values(setting, typed)

    return complete


def complete_names(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Names of settings, sections, methods and networks."""
    names = {one.name: one.help for one in every_setting()}
    names |= {one.name.rpartition(".")[0]: "" for one in every_setting() if "." in one.name}
    names |= {one.owner: "" for one in every_setting() if one.owner}
    return _beginning(typed, names.items())


def complete_assignment(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """What follows --set: the name of a setting up to its =, or behind it its values."""
    name, equals, value = typed.partition("=")
    if equals:
        return [CompletionItem(f"{name}={item.value}") for item in _values(name, value) if item.type == "plain"]
    names = {f"{one.name}=": one.help for one in every_setting()}
    return _beginning(typed, names.items())


def complete_runs(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """The runs that ship and those in runs/, or files."""
    folders = sorted(str(path.parent) for path in Path("runs").glob(f"*/{SETTINGS}"))
    files = sorted(str(path) for path in Path().glob("*.toml"))
    return _beginning(typed, ((name, "") for name in [*shipped(), *files, *folders])) or [_FILES]


def _values(setting: str, typed: str) -> list[CompletionItem]:
    names: dict[str, str] = {}
    for one in every_setting():
        if one.name == setting:
            names |= dict.fromkeys(choices_of(one.hint), "")
    if setting == "method.name":
        names = {name: spec.summary for name, spec in METHODS.items()}
    if setting == "method.finish":
        names = {f"{name}:10%": spec.summary for name, spec in METHODS.items() if not spec.in_passes}
    if setting == "train.threads":
        names = {"auto": ""}
    names |= dict.fromkeys(OF_FILES.get(setting, ()), "")
    found = _beginning(typed, names.items())
    if not found and setting in OF_FILES:
        return [_FOLDERS if setting == "output.folder" else _FILES]
    return found


def _beginning(typed: str, names: Iterable[tuple[str, str]]) -> list[CompletionItem]:
    return [CompletionItem(name, help=words or None) for name, words in names if name.startswith(typed)]
