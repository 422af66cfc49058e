"""Numbers too close together for float32, such as Unix times: refused; an earlier istmpi subtracted an offset."""

import numpy as np

from istmpi.errors import DataError
from istmpi.units import counted

NARROW = 2.0**-12
"""The share of the largest value below which values that float32 rounds are too close."""
NARROWEST = 2.0**-19
"""Likewise where float32 has each of them, but not their mean."""
NOISE = 4 * np.finfo(np.float64).eps
"""Floats that differ by a smaller share of the largest are rounded."""
OFFSETS = {"x": "normalisation/offset", "y": "normalisation/target_offset"}
NAMED = 5


class Extent:
    """The least and the largest value of each of ``groups`` equal runs of features."""

    def __init__(self, groups: int):
        self._groups = groups
        self._low = self._high = None
        self._rounded = np.zeros(groups, bool)
        """Groups of values close together of which some are none of float32."""

    def add(self, x: np.ndarray) -> None:
        """Take in a block [b, features]; bytes lose nothing and are passed over."""
        if len(x) == 0 or x.dtype.itemsize == 1:
            return
        runs = x.reshape(len(x), self._groups, -1)
        low, high = runs.min(axis=(0, 2)), runs.max(axis=(0, 2))
        if not np.can_cast(x.dtype, np.float32):
            for group in np.flatnonzero(_less(high, low) < 2 * NARROW * _largest(low, high)):
                values = runs[:, group]
                self._rounded[group] |= (values.astype(np.float32).astype(x.dtype) != values).any()
        if self._low is not None:
            low, high = np.minimum(low, self._low), np.maximum(high, self._high)
        self._low, self._high = low, high

    def require_apart(self, what: str, source: str) -> None:
        if self._low is None:
            return
        low, high = self._low, self._high
        spread, largest = _less(high, low), _largest(low, high)
        varying = (high > low) & (spread > (NOISE * largest if low.dtype.kind == "f" else 0))
        with np.errstate(over="ignore"):
            alike = low.astype(np.float32) == high.astype(np.float32)
        narrow = (spread < NARROWEST * largest) | (self._rounded & (spread < NARROW * largest))
        if len(close := np.flatnonzero(varying & (alike | narrow))):
            raise DataError(
                f"{source}: values of {named(close, what)} are too close together for float32, which has 24 bits. "
                f"Subtract a number from them first, or scale them."
            )


def less(x: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Return x less an offset [features] float64, as float32."""
    return _less(x, offset).astype(np.float32)


def _less(x: np.ndarray, other: np.ndarray) -> np.ndarray:
    if x.dtype.kind not in "iu" or x.dtype.itemsize < 8:
        return x.astype(np.float64, copy=False) - other
    high, low = map(_halves, (x, other))
    return (high[0] - low[0]) * 2.0**32 + (high[1] - low[1])


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if x.dtype.kind in "iu":
        return (x >> 32).astype(np.float64), (x & 0xFFFFFFFF).astype(np.float64)
    high = np.floor(x * 2.0**-32)
    return high, x - high * 2.0**32


def _largest(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.maximum(*(np.abs(end.astype(np.float64)) for end in (low, high)))


def named(features: np.ndarray, what: str = "feature") -> str:
    some = ", ".join(map(str, features[:NAMED].tolist())) + ", ..." * (len(features) > NAMED)
    return f"{counted(len(features), what)} (number {some})"
