"""Checksums of blocks of rows: made while rows are written in order, compared when they are first read in any order."""

import zlib
from pathlib import Path

import numpy as np

from istmpi.errors import DataError
from istmpi.hdf5 import differs

BLOCK = 2**16
"""Bytes of a block, about: as much as a system reads ahead anyway when a page of a map is touched, so that checking the
blocks of single rows reads little more than the rows."""


class Running:
    """The CRC-32 of every block of a dataset whose rows come in order."""

    def __init__(self, rows: int, row_bytes: int):
        self._rows = rows
        self.checksums = np.zeros(max(min(rows, -(-rows * row_bytes // BLOCK)), 1), np.uint32)
        """One for each block, right once all rows have come."""
        self._done = self._block = 0

    def add(self, rows: np.ndarray) -> None:
        """Take in the next rows, contiguous and as they go into the file."""
        start = 0
        while start < len(rows):
            stop = min(start + self._end() - self._done, len(rows))
            block = self._block
            self.checksums[block] = zlib.crc32(rows[start:stop].view(np.uint8), int(self.checksums[block]))
            self._done += stop - start
            self._block += self._done == self._end()
            start = stop

    def _end(self) -> int:
        """The row behind the block that is under way."""
        return self._rows * (self._block + 1) // len(self.checksums)


class FirstRead:
    """Compares a block of the rows of x with its checksum when one of them is about to be read for the first time."""

    def __init__(self, x: np.ndarray, expected: np.ndarray, path: Path, name: str):
        self._x, self._expected = x.view(np.ndarray), expected
        self._path, self._name = path, name
        self._unread = np.ones(len(expected), bool)
        self._left = len(expected)

    def __call__(self, rows: np.ndarray, length: int = 1) -> None:
        """Told of ``length`` rows from each of ``rows`` on; DataError for a block that is damaged."""
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
