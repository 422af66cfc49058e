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
"""Files of which a run's folder has at least one. `rm` removes them last, so a failed `rm` can be
repeated."""


@click.group("runs", invoke_without_command=True)
@as_json
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the runs that ship with istmpi. istmpi train NAME trains a run; istmpi settings lists
    all settings."""
    if context.invoked_subcommand:
        return
    files = {name: SHIPPED.joinpath(f"{name}.toml") for name in shipped()}
    first_lines = {
        name: file.read_text().splitlines()[0].lstrip("# ") for name, file in files.items()
    }
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
    facts = [*map(_facts, _runs_in(Path(read("ISTMPI_RUNS"))))]
    print_json(facts) if as_json else _show(facts)


@command.command("rm")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True)
@flag("--yes", "Do not ask.")
def rm(folders: tuple[str, ...], yes: bool) -> None:
    """Ask, then remove runs with all their files. RUN is a folder in $ISTMPI_RUNS (default: runs),
    or its name."""
    runs = dict.fromkeys(_removable(folder, Path(read("ISTMPI_RUNS"))) for folder in folders)
    if not yes:
        _show([*map(_facts, runs)])
        if not sys.stdin.isatty():
            raise ConfigError(
                "istmpi runs rm asks before it removes, and no terminal is here to answer. Give --yes."
            )
        click.confirm(f"Remove {counted(len(runs), 'run')}?", abort=True)
    for run in runs:
        if run.exists():  # else it was inside of one before
            _remove(run)
            say(f"removed {run}")


def _runs_in(folder: Path) -> Iterator[Path]:
    """Yield the runs in a folder, or the folder if it is a run itself. A comparison counts as one
    run."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Train a run, or correct ISTMPI_RUNS.")
    for path, folders, files in os.walk(folder):
        folders.sort()
        if {*MARKS} & {*files}:
            folders.clear()
            yield Path(path)


def _facts(run: Path) -> dict[str, Any]:
    statuses = [path.lstat() for path in (run, *run.rglob("*")) if os.path.lexists(path)]
    allotted = {status.st_ino: 512 * status.st_blocks for status in statuses}
    state = (
        "finished"
        if (run / SUMMARY).is_file()
        else "comparison"
        if (run / COMPARISON).is_file()
        else "unfinished"
    )
    state = "in use" if _holder(run, run) else state
    return {
        "folder": str(run),
        "bytes": sum(allotted.values()),
        "files": len(allotted),
        "state": state,
    }


def _show(facts: list[dict[str, Any]]) -> None:
    listing = table("size", "files", "state", "folder")
    for run in facts:
        listing.add_row(
            size(run["bytes"]), f"{run['files']:,}", run["state"], one_line(run["folder"])
        )
    nbytes, files = (sum(run[name] for run in facts) for name in ("bytes", "files"))
    listing.add_row(size(nbytes), f"{files:,}", "", counted(len(facts), "run"))
    console(soft_wrap=True).print(listing)


def _removable(name: str, root: Path) -> Path:
    folder = root / name if (root / name).is_dir() else Path(name)
    if not folder.is_dir():
        raise ConfigError(
            f"{name}: there is no such folder, here or in {root}. See: istmpi runs du"
        )
    if root.resolve() not in folder.resolve().parents or folder.is_symlink():
        raise ConfigError(
            f"{folder} is a link or not inside {root}. Set ISTMPI_RUNS to the folder that contains it."
        )
    if next(_runs_in(folder), None) != folder:
        raise ConfigError(
            f"{folder} is not a run: it lacks all of {', '.join(MARKS)}. Remove it by hand."
        )
    if holder := _holder(folder.resolve(), root.resolve()):
        raise ConfigError(
            f"{folder} is in use by {holder}. Stop the run first: touch {folder}/STOP"
        )
    return folder


def _holder(run: Path, root: Path) -> str:
    around = (folder for folder in run.parents if root in folder.parents)
    folders = (run, *around, *(path.parent for path in run.rglob(lock.FILE)))
    return next(filter(None, map(lock.holder, folders)), "")


def _remove(run: Path) -> None:
    """Remove a run's folder, locked meanwhile; the files of `MARKS` go last. Raises OutputError if
    that fails."""
    try:
        lock.FolderLock(run)
        for path in sorted(
            run.iterdir(),
            key=lambda path: (path.name in (*MARKS, lock.FILE), path.name == lock.FILE),
        ):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        run.rmdir()
    except OSError as error:
        raise OutputError(
            f"{error.filename or run}: cannot be removed ({error.strerror})."
        ) from None
