"""List the runs that ship with istmpi; measure and remove the folders of runs."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from istmpi import lock
from istmpi.cli.options import as_json, flag
from istmpi.cli.output import console, print_json, say, table
from istmpi.config import SHIPPED, shipped
from istmpi.environment import read
from istmpi.errors import ConfigError, DataError, OutputError
from istmpi.foreign import one_line
from istmpi.record import COMPARISON, METRICS, SETTINGS, SUMMARY
from istmpi.units import counted, size

MARKS = (METRICS, SETTINGS, COMPARISON)
"""Files of which a run's folder has at least one.

`rm` removes them last, so a failed `rm` can be repeated.
"""


@click.group("runs", invoke_without_command=True)
@as_json
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the runs that ship with istmpi. istmpi train NAME trains a run; istmpi settings lists
    all settings."""
    if context.invoked_subcommand:
        return
    first_lines = {}
    for name in shipped():
        text = SHIPPED.joinpath(f"{name}.toml").read_text()
        first_lines[name] = text.splitlines()[0].lstrip("# ")
    if as_json:
        print_json(first_lines)
        return
    listing = table()
    for name, line in first_lines.items():
        listing.add_row(Text(name, "bold"), line)
    console(soft_wrap=True).print(listing)


@command.command("du")
@as_json
def du(as_json: bool) -> None:
    """Print the disk space of the runs in the folder $ISTMPI_RUNS (default: runs).

    Sizes are what the file system allots; the file count includes folders, as a quota of inodes
    does.
    """
    facts = [_facts(folder) for folder in _find_runs(Path(read("ISTMPI_RUNS")))]
    if as_json:
        print_json(facts)
    else:
        _show(facts)


@command.command("rm")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True)
@flag("--yes", "Do not ask.")
def rm(folders: tuple[str, ...], yes: bool) -> None:
    """Ask, then remove runs with all their files. RUN is a folder in $ISTMPI_RUNS (default: runs),
    or its name."""
    root = Path(read("ISTMPI_RUNS"))
    runs = dict.fromkeys(_require_removable(folder, root) for folder in folders)
    if not yes:
        _show([_facts(folder) for folder in runs])
        if not sys.stdin.isatty():
            raise ConfigError(
                "istmpi runs rm asks before it removes, and no terminal is here to answer. "
                "Give --yes."
            )
        click.confirm(f"Remove {counted(len(runs), 'run')}?", abort=True)
    for folder in runs:
        if folder.exists():  # else it was inside of one before
            _remove(folder)
            say(f"removed {folder}")


def _find_runs(folder: Path) -> Iterator[Path]:
    """Yield the runs in a folder, or the folder if it is a run itself.

    A comparison counts as one run.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Train a run, or correct ISTMPI_RUNS.")
    for path, folders, files in os.walk(folder):
        folders.sort()
        if {*MARKS} & {*files}:
            folders.clear()  # os.walk goes no deeper
            yield Path(path)


def _facts(folder: Path) -> dict[str, Any]:
    """Return a run's folder, its bytes and files on disk, and its state."""
    statuses = [path.lstat() for path in (folder, *folder.rglob("*")) if os.path.lexists(path)]
    # Files with several names count once; a block has 512 bytes for every file system.
    allotted = {status.st_ino: 512 * status.st_blocks for status in statuses}
    return {
        "folder": str(folder),
        "bytes": sum(allotted.values()),
        "files": len(allotted),
        "state": _state(folder),
    }


def _state(folder: Path) -> str:
    if _find_holder(folder, folder):
        return "in use"
    if (folder / SUMMARY).is_file():
        return "finished"
    if (folder / COMPARISON).is_file():
        return "comparison"
    return "unfinished"


def _show(facts: list[dict[str, Any]]) -> None:
    listing = table("size", "files", "state", "folder")
    for run in facts:
        folder = one_line(run["folder"])
        listing.add_row(size(run["bytes"]), f"{run['files']:,}", run["state"], folder)
    nbytes = sum(run["bytes"] for run in facts)
    files = sum(run["files"] for run in facts)
    listing.add_row(size(nbytes), f"{files:,}", "", counted(len(facts), "run"))
    console(soft_wrap=True).print(listing)


def _require_removable(name: str, root: Path) -> Path:
    """Return a run's folder; raise ConfigError if it is not one, or must stay."""
    folder = root / name
    if not folder.is_dir():
        folder = Path(name)
    if not folder.is_dir():
        raise ConfigError(
            f"{name}: there is no such folder, here or in {root}. See: istmpi runs du"
        )
    # Through a link, files elsewhere would be removed.
    if root.resolve() not in folder.resolve().parents or folder.is_symlink():
        raise ConfigError(
            f"{folder} is a link or not inside {root}. "
            "Set ISTMPI_RUNS to the folder that contains it."
        )
    if next(_find_runs(folder), None) != folder:
        raise ConfigError(
            f"{folder} is not a run: it lacks all of {', '.join(MARKS)}. Remove it by hand."
        )
    holder = _find_holder(folder.resolve(), root.resolve())
    if holder:
        raise ConfigError(
            f"{folder} is in use by {holder}. Stop the run first: touch {folder}/STOP"
        )
    return folder


def _find_holder(folder: Path, root: Path) -> str:
    """Return the process that has locked a run, a run in it, or a comparison around it."""
    around = [path for path in folder.parents if root in path.parents]
    inside = [path.parent for path in folder.rglob(lock.FILE)]
    for path in (folder, *around, *inside):
        holder = lock.holder(path)
        if holder:
            return holder
    return ""


def _remove(folder: Path) -> None:
    """Remove a run's folder, locked meanwhile; the files of `MARKS` go last.

    Raises OutputError if that fails.
    """

    def place(path: Path) -> int:
        if path.name == lock.FILE:
            return 2
        return 1 if path.name in MARKS else 0

    try:
        lock.FolderLock(folder)
        for path in sorted(folder.iterdir(), key=place):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        folder.rmdir()
    except OSError as error:
        raise OutputError(
            f"{error.filename or folder}: cannot be removed ({error.strerror})."
        ) from None
