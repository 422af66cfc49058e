"""Checkpoints in parts, one of each rank on its host's own disk: checkpoints/round-N/rank-R.h5.

A part is laid out as the file of all ranks is. The rows of other ranks are holes, which take no
room on the disk, and are read as zeros. All parts have the same attributes and checksums.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_FOLDER = re.compile(r"round-\d+")
_ASIDE = re.compile(r"round-\d+\.aside-\d+")
_FILE = re.compile(r"rank-(\d+)\.h5")


def is_round_of_parts(path: Path) -> bool:
    """Return True for a folder of parts, unless it is empty or was set aside."""
    return bool(_FOLDER.fullmatch(path.name)) and next(list_parts(path), None) is not None


def list_parts(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the rank and the path of each part in a round's folder."""
    for path in sorted(folder.glob("rank-*.h5")):
        rank = find_part(path)
        if rank is not None and path.is_file():
            yield rank, path


def find_part(path: Path) -> int | None:
    """Return the rank whose rows alone are in a file, by the file's name; None for a whole
    checkpoint."""
    named = _FILE.fullmatch(path.name)
    folder = path.parent.name
    if named is None or not (_FOLDER.fullmatch(folder) or _ASIDE.fullmatch(folder)):
        return None
    return int(named[1])


def find_saver(ranks: int, block: int, blocks: int) -> int:
    """Return the rank in whose part a block of a dataset with so many blocks is."""
    if blocks == ranks:
        return block
    # Rank 0 writes what is not divided among ranks.
    return 0


@dataclass(frozen=True)
class Copy:
    """A checkpoint's path, as messages name it, and the file in which this rank reads it.

    The file may have only the rows that this rank reads (`istmpi.checkpoint.fetching`).
    """

    path: Path
    file: Path

    def __str__(self) -> str:
        return str(self.path)

    def discard(self) -> None:
        """Remove the file, if it was made for this rank."""
        if self.file != self.path:
            with suppress(OSError):
                self.file.unlink(missing_ok=True)
