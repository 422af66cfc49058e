"""List the runs that ship with istmpi; measure and remove the folders of runs."""

import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

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
"""Files of which a run's folder has one; they are removed last, so that `rm` can finish what was interrupted."""


@click.group("runs", invoke_without_command=True)
@as_json
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the runs that ship with istmpi: istmpi train NAME. What a run may say: istmpi settings.

    du and rm are about the folders of your own runs, in the folder $ISTMPI_RUNS (runs).
    """
    if context.invoked_subcommand:
        return
    files = {name: SHIPPED.joinpath(f"{name}.toml") for name in shipped()}
    first_lines = {name: file.read_text().splitlines()[0].lstrip("# ") for name, file in files.items()}
    if as_json:
        print_json(first_lines)
        return
    listing = table()
    for name, line in first_lines.items():
        listing.add_row(f"[bold]{name}", escape(line))
    console(soft_wrap=True).print(listing)


@command.command("du")
@click.argument("folders", metavar="[FOLDER]...", nargs=-1)
@as_json
def du(folders: tuple[str, ...], as_json: bool) -> None:
    """Print the space that runs take: all in $ISTMPI_RUNS (runs), or those in each FOLDER.

    Sizes are what the file system allots; files count folders, too, as a quota of inodes does.
    """
    runs = [run for folder in folders or [read("ISTMPI_RUNS")] for run in _runs_in(Path(folder))]
    facts = [_facts(run) for run in dict.fromkeys(runs)]
    if as_json:
        print_json(facts)
        return
    _show(facts)


@command.command("rm")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True)
@flag("--yes", "Do not ask.")
def rm(folders: tuple[str, ...], yes: bool) -> None:
    """Remove runs with all their files, after a question. RUN is a folder in $ISTMPI_RUNS (runs), or its name there.

    \b
    istmpi runs rm digits runs/speech-2
    istmpi runs rm digits --yes
    """
    root = Path(read("ISTMPI_RUNS"))
    runs = dict.fromkeys(_removable(folder, root) for folder in folders)
    if not yes:
        _show([_facts(run) for run in runs])
        if not sys.stdin.isatty():
            raise ConfigError("istmpi runs rm asks before it removes, and no terminal is here to answer. Give --yes.")
        click.confirm(f"Remove {'it' if len(runs) == 1 else 'them'}?", abort=True)
    for run in runs:
        if run.exists():  # else it was inside of one before
            _remove(run)
            say(f"removed {run}")


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in MARKS)


def _runs_in(folder: Path) -> list[Path]:
    """Find the runs in a folder, itself included; a comparison is one."""
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder. Name that of a run or of runs, or set ISTMPI_RUNS.")
    if _is_run(folder):
        return [folder]
    with suppress(PermissionError):
        inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
        return [run for path in inside for run in _runs_in(path)]
    return []


def _facts(run: Path) -> dict[str, Any]:
    """Measure a run's folder; a file with two names counts once."""
    paths = {path: path.lstat() for path in (run, *run.rglob("*")) if path.is_symlink() or path.exists()}
    allotted = {(status.st_dev, status.st_ino): 512 * status.st_blocks for status in paths.values()}
    checkpoints = {
        status.st_ino: 512 * status.st_blocks for path, status in paths.items() if "checkpoints" in path.parts
    }
    state = "comparison" if (run / COMPARISON).is_file() else "finished" if (run / SUMMARY).is_file() else "unfinished"
    return {
        "folder": str(run),
        "bytes": sum(allotted.values()),
        "files": len(allotted),
        "checkpoints": sum(checkpoints.values()),
        "state": "in use" if _holder(run, run) else state,
    }


def _show(facts: list[dict[str, Any]]) -> None:
    listing = table("folder", "size", "checkpoints", "files", "state")
    for column in listing.columns[1:4]:
        column.justify = "right"
    total = {"folder": "all", **{name: sum(run[name] for run in facts) for name in ("bytes", "files", "checkpoints")}}
    for run in (*facts, *[total] * (len(facts) != 1)):
        row = (
            size(run["bytes"]),
            size(run["checkpoints"]),
            f"{run['files']:,}",
            run.get("state", counted(len(facts), "run")),
        )
        listing.add_row(escape(one_line(run["folder"])), *row)
    console(soft_wrap=True).print(listing)


def _removable(name: str, root: Path) -> Path:
    """Return a run's folder; ConfigError where it is none, lies outside of the runs' folder, or is in use."""
    folder = root / name if (root / name).is_dir() else Path(name)
    if not folder.is_dir():
        raise ConfigError(f"{name}: there is no such folder, here or in {root}. See: istmpi runs du")
    if folder.is_symlink():
        raise ConfigError(f"{folder} is a link. Name the folder that it leads to.")
    inside = folder.resolve()
    if root.resolve() not in inside.parents:
        raise ConfigError(
            f"{folder} is not in the folder of runs, {root}. Set ISTMPI_RUNS to the folder that holds it."
        )
    if not _is_run(folder):
        raise ConfigError(f"{folder} is not a run: it has none of {', '.join(MARKS)}. Remove it by hand.")
    if holder := _holder(inside, root.resolve()):
        raise ConfigError(f"{folder} is in use by {holder}. Stop the run first: touch {folder}/STOP")
    return folder


def _holder(run: Path, root: Path) -> str:
    """Name who works in a run, in a run of it, or in the comparison around it; empty where nobody does."""
    above = [folder for folder in (run, *run.parents) if folder == root or root in folder.parents]
    inside = [path.parent for path in run.rglob(lock.FILE)]
    return next(filter(None, map(lock.holder, dict.fromkeys((*above, *inside)))), "")


def _remove(run: Path) -> None:
    """Remove a run's folder; it is held meanwhile, so that nobody starts in it, and its marks go last."""
    try:
        lock.FolderLock(run)
        for path in sorted(run.iterdir(), key=lambda path: (path.name in MARKS) + 2 * (path.name == lock.FILE)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        run.rmdir()
    except OSError as error:
        raise OutputError(f"{error.filename or run}: cannot be removed ({error.strerror}).") from None
