"""The checkpoints of a run's folder: their names, the newest that is valid, and which are kept."""

import contextlib
import re
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from istmpi.checkpoint.format import Header
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.comm import Communicator
from istmpi.errors import DataError, OutputError

FOLDER = "checkpoints"
NETWORK = "network.h5"
BEST = "best.h5"

_PATTERN = "round-*.h5"
_NAME = re.compile(r"round-(\d+)(?:-step-(\d+))?\.h5")


def name(header: Header) -> str:
    return f"round-{header.round:08d}.h5"


def listed(folder: Path) -> list[Path]:
    """List all checkpoints of a run's folder, or of the folder of its checkpoints; the last first, by their names."""
    inside = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    network = [folder / NETWORK] if (folder / NETWORK).is_file() else []
    return network + sorted(inside.glob(_PATTERN), key=lambda path: path.stem, reverse=True)


def newest_valid(folder: Path, communicator: Communicator, note: Callable[[str], None]) -> Path | None:
    """Find the checkpoint with which training got furthest, among those whose every byte is right. Collective.

    ``note`` is told on rank 0 of each that is passed over. DataError, on every rank, when there are some but none is
    valid.
    """
    paths = communicator.broadcast_from_root(_by_position(folder, note) if communicator.rank == 0 else None)
    for path in paths:
        try:
            require_valid(path, communicator)
            return path
        except DataError as error:
            if communicator.rank == 0:
                note(f"{error} Skipped.")
    there = communicator.broadcast_from_root(bool(listed(folder)))
    with communicator.agreed():
        if there:
            raise DataError(
                f"{folder}: no checkpoint in it is valid on every rank. Put it where all ranks see it, remove "
                "its checkpoints, or give another --out."
            )
    return None


def require_valid(path: Path, communicator: Communicator) -> None:
    """Read a whole checkpoint, each rank a share of it; DataError on every rank when anything is wrong. Collective."""
    with communicator.agreed(), open_checkpoint(path) as checkpoint:
        checkpoint.require_valid(communicator.rank, communicator.size)


def _by_position(folder: Path, note: Callable[[str], None]) -> list[Path]:
    positions = []
    for path in listed(folder):
        try:
            with open_checkpoint(path) as checkpoint:
                positions.append((checkpoint.header.position, path))
        except DataError as error:
            note(f"{error} Skipped.")
    return [path for _, path in sorted(positions, key=lambda entry: entry[0], reverse=True)]


def set_aside(folder: Path, start: Path) -> list[Path]:
    """Rename the checkpoints that would be taken for newer than ``start``; return their new names.

    One that cannot be read is where its name says. Raises OutputError.
    """
    paths = sorted(listed(folder), key=_position, reverse=True)
    inside = next((number for number, path in enumerate(paths) if path.samefile(start)), None)
    beyond = [path for path in paths if _position(path) >= _position(start)] if inside is None else paths[:inside]
    ending = next(f".aside-{n}" for n in count(1) if not any(folder.rglob(f"*.aside-{n}"))) if beyond else ""
    for path in beyond:
        try:
            path.rename(path.with_name(path.name + ending))
        except OSError as error:
            raise OutputError(f"{path}: cannot be renamed ({error.strerror}).") from None
    return [path.with_name(path.name + ending) for path in beyond]


def _position(path: Path) -> tuple[float, float]:
    try:
        with open_checkpoint(path) as checkpoint:
            return checkpoint.header.position
    except DataError:
        named = _NAME.fullmatch(path.name)
        return (int(named[1]), int(named[2] or 0)) if named else (float("inf"), 0)


def retain(folder: Path, keep: int, valid: Sequence[Path]) -> None:
    """Remove all but the last ``keep`` of the ``valid`` checkpoints; none while fewer are known to be valid."""
    if len(valid) < keep:
        return
    for path in listed(folder):
        if path not in valid[-keep:]:
            with contextlib.suppress(OSError):
                path.unlink()


def remove_leftovers(folder: Path) -> None:
    for path in (path for name in (_PATTERN, NETWORK, BEST) for path in folder.glob(f".{name}.*.tmp")):
        with contextlib.suppress(OSError):
            path.unlink()
