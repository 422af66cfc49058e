"""Finds features of sparse rows whose values are too close together for float32."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np

from istmpi.data.moments import NARROWEST, NOISE

CHUNK = 2**16
MOST_KEPT = 2**20
"""The number of kept (feature, extent) entries at which entries of one feature are joined."""


class Closeness:
    """The extent of each feature's values, and whether float32 rounds some of them."""

    def __init__(self) -> None:
        self._columns = array("i")
        self._values = array("d")
        self._kept: list[_Extents] = []
        self._count = 0

    def add(self, columns: list[int], values: list[float]) -> None:
        self._columns.extend(columns)
        self._values.extend(values)
        if len(self._values) >= CHUNK:
            self._flush()

    def find_close(self) -> int | None:
        """Return the first feature with values that float32 cannot tell apart; None without one."""
        self._flush()
        if not self._kept:
            return None
        extents = _join(self._kept)
        spread = extents.high - extents.low
        largest = np.maximum(np.abs(extents.low), np.abs(extents.high))
        # No mean is subtracted from sparse rows: two values 2^-19 apart stay apart by 32 steps of
        # float32.
        close = extents.rounded & (spread > NOISE * largest) & (spread < NARROWEST * largest)
        if not close.any():
            return None
        return int(extents.columns[np.argmax(close)])

    def _flush(self) -> None:
        if not self._values:
            return
        columns = np.array(self._columns)
        values = np.array(self._values)
        rounded = values.astype(np.float32).astype(np.float64) != values
        extents = _Extents(columns=columns, low=values, high=values, rounded=rounded).merge()
        self._kept.append(extents)
        self._count += len(extents.columns)
        self._columns = array("i")
        self._values = array("d")
        if self._count > MOST_KEPT:
            joined = _join(self._kept)
            self._kept = [joined]
            # Half of them: with very many features, not each block is joined.
            self._count = len(joined.columns) // 2


class _Extents(NamedTuple):
    """The least and the largest value of columns, and whether float32 rounds one of the values."""

    columns: np.ndarray
    low: np.ndarray
    high: np.ndarray
    rounded: np.ndarray

    def merge(self) -> _Extents:
        """Return one entry for each column."""
        order = np.argsort(self.columns, kind="stable")
        columns, starts = np.unique(self.columns[order], return_index=True)
        return _Extents(
            columns=columns,
            low=np.minimum.reduceat(self.low[order], starts),
            high=np.maximum.reduceat(self.high[order], starts),
            rounded=np.logical_or.reduceat(self.rounded[order], starts),
        )


def _join(kept: list[_Extents]) -> _Extents:
    return _Extents(
        columns=np.concatenate([extents.columns for extents in kept]),
        low=np.concatenate([extents.low for extents in kept]),
        high=np.concatenate([extents.high for extents in kept]),
        rounded=np.concatenate([extents.rounded for extents in kept]),
    ).merge()
