"""The values that a shell offers at Tab: methods, networks, runs, and the choices of settings."""

from collections.abc import Callable, Iterable
from functools import partial

from click import Context, Parameter
from click.shell_completion import CompletionItem

from istmpi.config import every_setting, shipped, type_of
from istmpi.config.methods import METHODS
from istmpi.names import NARROW
from istmpi.record import COMPARISON, SETTINGS, home
from istmpi.settings import list_choices

Complete = Callable[[Context, Parameter, str], list[CompletionItem]]
_FILE = CompletionItem("", type="file")
"""An item that makes a shell offer files. It comes first, because bash forgets what is before."""
_OF_FILES = ("data.source", "train.init", "output.folder", "method.shares", "model.name")
"""The settings whose value may be a file or a folder."""


def complete_setting(setting: str) -> Complete:
    """Return a function that offers the values of a setting."""
    return partial(_complete_setting, setting)


def _complete_setting(
    setting: str, context: Context, parameter: Parameter, typed: str
) -> list[CompletionItem]:
    words = list_choices(type_of(setting))
    if setting == "data.source":
        words = ("digits",)
    offered = _offer(words, typed)
    if setting in _OF_FILES:
        return [_FILE, *offered]
    return offered


def complete_methods(context: Context, parameter: Parameter, typed: str) -> list[CompletionItem]:
    """Offer methods, also behind a comma."""
    before, comma, last = typed.rpartition(",")
    chosen = before.split(",")
    words = []
    for name in (*METHODS, NARROW):
        if name.startswith(last) and name not in chosen:
            words.append(f"{before}{comma}{name}")
    return _offer(words, typed)


def complete_names(context: Context, parameter: Parameter, typed: str) -> list[CompletionItem]:
    """Offer the names of settings with an equals sign."""
    return _offer(dict.fromkeys(f"{setting.name}=" for setting in every_setting()), typed)


def complete_run(context: Context, parameter: Parameter, typed: str) -> list[CompletionItem]:
    """Offer the built-in runs, the folders of runs, and files."""
    return [_FILE, *_offer([*shipped(), *_list_folders(SETTINGS)], typed)]


def complete_folder(context: Context, parameter: Parameter, typed: str) -> list[CompletionItem]:
    """Offer the folders of runs and comparisons, and files."""
    return [_FILE, *_offer(_list_folders(SETTINGS, COMPARISON), typed)]


def _list_folders(*records: str) -> list[str]:
    """Return the folders, in the folder of runs, that have one of the files ``records``."""
    parent = home("", "")
    if not parent.is_dir():
        return []
    folders = []
    for path in sorted(parent.iterdir()):
        if any((path / record).is_file() for record in records):
            folders.append(str(path))
    return folders


def _offer(words: Iterable[str], typed: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(typed)]
