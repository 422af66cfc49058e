"""Finds features of sparse rows whose values are too close together for float32."""

from array import array

import numpy as np

from istmpi.data.moments import NARROWEST, NOISE

CHUNK = 2**16
MOST_KEPT = 2**20
"""The number of kept (feature, extent) entries at which entries of one feature are joined."""


class Closeness:
    """The extent of each feature's values, and whether float32 rounds some of them."""

    def __init__(self) -> None:
        self._columns, self._values = array("i"), array("d")
        self._kept: list[tuple[np.ndarray, ...]] = []
        self._count = 0

    def add(self, columns: list[int], values: list[float]) -> None:
        self._columns.extend(columns)
        self._values.extend(values)
        if len(self._values) >= CHUNK:
            self._flush()

    def too_close(self) -> int | None:
        """Return the first feature with values that float32 cannot tell apart; None without one."""
        self._flush()
        if not self._kept:
            return None
        columns, low, high, rounded = self._joined()
        spread, largest = high - low, np.maximum(np.abs(low), np.abs(high))
        # No mean is subtracted from sparse rows: two values 2^-19 apart stay apart by 32 steps of float32.
        close = rounded & (spread > NOISE * largest) & (spread < NARROWEST * largest)
        return int(columns[np.argmax(close)]) if close.any() else None

    def _flush(self) -> None:
        if not self._values:
            return
        columns, values = np.array(self._columns), np.array(self._values)
        rounded = values.astype(np.float32).astype(np.float64) != values
        self._kept.append(_by_column(columns, values, values, rounded))
        self._count += len(self._kept[-1][0])
        self._columns, self._values = array("i"), array("d")
        if self._count > MOST_KEPT:
            self._kept = [self._joined()]
            self._count = (
                len(self._kept[0][0]) // 2
            )  # so that many features are not joined each time

    def _joined(self) -> tuple[np.ndarray, ...]:
        return _by_column(*map(np.concatenate, zip(*self._kept)))


def _by_column(
    columns: np.ndarray, low: np.ndarray, high: np.ndarray, rounded: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return one entry for each column: the least ``low``, the largest ``high``, any
    ``rounded``."""
    order = np.argsort(columns, kind="stable")
    named, starts = np.unique(columns[order], return_index=True)
    least = np.minimum.reduceat(low[order], starts)
    largest = np.maximum.reduceat(high[order], starts)
    return named, least, largest, np.logical_or.reduceat(rounded[order], starts)
