"""Guards of mapped rows: checksums of blocks, compared when first read."""

import mmap
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from istmpi.errors import DataError
from istmpi.hdf5 import differs

BLOCK = 2**16
"""Bytes of a block, about: as much as a system reads ahead."""


def blocks_of(rows: int, row_bytes: int) -> list[tuple[int, int]]:
    """Return the first row of each block, and the one behind its last."""
    blocks = max(min(rows, -(-rows * row_bytes // BLOCK)), 1)
    return [(rows * block // blocks, rows * (block + 1) // blocks) for block in range(blocks)]


class FirstRead:
    """Compares a block of the rows of x with its checksum before it is read for the first time."""

    def __init__(self, x: np.ndarray, expected: np.ndarray, path: Path, name: str):
        self._x, self._expected = x.view(np.ndarray), expected
        self._path, self._name = path, name
        self._unread = np.ones(len(expected), bool)
        self._left = len(expected)

    def __call__(self, rows: np.ndarray, length: int | np.ndarray = 1) -> None:
        """Expect ``length`` rows to be read from each of ``rows`` on; DataError for damage."""
        if not self._left:
            return
        blocks, count = len(self._expected), len(self._x)
        first, last = (((np.asarray(rows, np.int64) + more) * blocks - 1) // count for more in (1, length))
        touched = np.concatenate([np.minimum(first + n, last) for n in range(int((last - first).max(initial=0)) + 1)])
        for block in np.unique(touched[self._unread[touched]]).tolist():
            first, last = count * block // blocks, count * (block + 1) // blocks
            if zlib.crc32(self._x[first:last]) != self._expected[block]:
                raise DataError(
                    f"{self._path} is damaged: {differs(self._name, first, last)}; prepare or copy it again."
                )
            self._unread[block] = False
            self._left -= 1


KEPT = 2**31
"""Bytes of a map up to which a process keeps its pages."""


def letting_go(x: np.memmap, before: Callable[..., None] | None) -> Callable[..., None] | None:
    """Return ``before``, and for a large map let go of its pages, with which a process seems to grow."""
    if x.nbytes <= KEPT:
        return before

    def let_go(rows: np.ndarray, length: int | np.ndarray = 1) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):
            x.base.madvise(mmap.MADV_DONTNEED)
        if before is not None:
            before(rows, length)

    return let_go
