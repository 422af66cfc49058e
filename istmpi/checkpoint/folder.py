"""The checkpoints of a run's folder: their names, the newest that is valid, and which are kept."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from istmpi.checkpoint.format import Header
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.comm import Communicator
from istmpi.errors import DataError

FOLDER = "checkpoints"
"""In a run's folder: what training can go on from."""
NETWORK = "network.h5"
"""In a run's folder: the trained network, the last checkpoint of all."""

_PATTERN = "round-*.h5"


def name(header: Header) -> str:
    """The file's name; names sort as training went on."""
    inside = f"-step-{header.local_step:06d}" * (header.local_step > 0)
    return f"round-{header.round:08d}{inside}.h5"


def listed(folder: Path) -> list[Path]:
    """All checkpoints in a run's folder, or in the folder of its checkpoints: the last first, by their names."""
    inside = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    network = [folder / NETWORK] if (folder / NETWORK).is_file() else []
    return network + sorted(inside.glob(_PATTERN), key=lambda path: path.stem, reverse=True)


def newest_valid(folder: Path, communicator: Communicator, note: Callable[[str], None]) -> Path | None:
    """The checkpoint of a folder with which training got furthest, of those whose every byte is right. Collective.

    ``note`` is told on rank 0 of each that has to be passed over. None when the folder has none; DataError, on every
    rank, when it has some but none is valid.
    """
    paths = communicator.from_first(_by_position(folder, note) if communicator.rank == 0 else None)
    for path in paths:
        try:
            require_valid(path, communicator)
            return path
        except DataError as error:
            if communicator.rank == 0:
                note(f"{error} Passed over.")
    there = communicator.from_first(bool(listed(folder)))
    with communicator.agreed():
        if there:
            raise DataError(
                f"{folder}: it has checkpoints, but none of them is valid on every rank. Let all ranks see them, "
                f"remove them, or give another --out."
            )
    return None


def require_valid(path: Path, communicator: Communicator) -> None:
    """Read a whole checkpoint, each rank a share of it; DataError on every rank when anything is wrong. Collective."""
    with communicator.agreed(), open_checkpoint(path) as checkpoint:
        checkpoint.require_valid(communicator.rank, communicator.size)


def _by_position(folder: Path, note: Callable[[str], None]) -> list[Path]:
    """Those that can be opened, the one that got furthest first."""
    found = []
    for path in listed(folder):
        try:
            with open_checkpoint(path) as checkpoint:
                found.append((checkpoint.header.position, path))
        except DataError as error:
            note(f"{error} Passed over.")
    return [path for _, path in sorted(found, key=lambda entry: entry[0], reverse=True)]


def retain(folder: Path, keep: int) -> None:
    """Remove all but the last ``keep`` checkpoints of a folder of checkpoints. One that cannot be removed stays."""
    for path in listed(folder)[keep:]:
        with contextlib.suppress(OSError):
            path.unlink()


def temporary(path: Path) -> Path:
    """A name beside a file that nobody has had before: other hosts may remember what a name stood for."""
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writes have left behind."""
    for path in [*folder.glob(f".{_PATTERN}.*.tmp"), *folder.glob(f".{NETWORK}.*.tmp")]:
        with contextlib.suppress(OSError):
            path.unlink()
