"""Mean and deviation of data in blocks, and a check for numbers too close together for float32."""

from typing import NamedTuple

import numpy as np

from istmpi.errors import DataError
from istmpi.units import counted


class Normalisation(NamedTuple):
    """The normalisation of examples: (x - offset - mean) / std; the first difference is float64,
    the rest float32."""

    mean: np.ndarray
    std: np.ndarray
    offset: np.ndarray | None = None

    @property
    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean and deviation of the data before ``offset`` is subtracted."""
        if self.offset is None:
            return self.mean, self.std
        return self.mean + self.offset, self.std


class Moments:
    """Per-feature mean and sum of squared deviations, merged block by block (Chan, Golub and
    LeVeque 1983)."""

    def __init__(self, features: int):
        self._count = 0
        self._mean = np.zeros(features)
        self._squares = np.zeros(features)

    def add(self, x: np.ndarray) -> None:
        if len(x) == 0:
            return
        mean = x.mean(axis=0, dtype=np.float64)
        # Squares of float32 would lose the deviation of values far from zero.
        deviation = x.astype(np.float64)
        deviation -= mean
        self.merge(len(x), mean, np.einsum("ij,ij->j", deviation, deviation))

    @property
    def parts(self) -> tuple[int, np.ndarray, np.ndarray]:
        return self._count, self._mean, self._squares

    def merge(self, more: int, mean: np.ndarray, squares: np.ndarray) -> None:
        shift = mean - self._mean
        count = self._count + more
        self._squares += squares
        self._squares += shift**2 * (self._count * more / count)
        self._mean += shift * (more / count)
        self._count = count

    def normalisation(self, groups: int) -> Normalisation:
        """Return the mean and the deviation to normalise with.

        The features form ``groups`` consecutive runs of equal length. Each run has one mean and one
        deviation; the deviation of a constant run is 1.
        """
        means = self._mean.reshape(groups, -1)
        mean = means.mean(axis=1, keepdims=True)
        within = self._squares.reshape(groups, -1).mean(axis=1, keepdims=True) / self._count
        between = ((means - mean) ** 2).mean(axis=1, keepdims=True)
        std = np.sqrt(within + between)
        # A constant feature's computed deviation is not zero but a rounding error.
        std[std <= 1e-7 * np.abs(mean)] = 1.0
        features = len(self._mean) // groups
        return Normalisation(
            mean=np.repeat(mean, features).astype(np.float32),
            std=np.repeat(std, features).astype(np.float32),
        )


NARROW = 2.0**-12
"""Values that float32 rounds need a range of at least this share of the largest value."""
NARROWEST = 2.0**-19
"""The share, as `NARROW`, for values that are exact in float32 but whose mean is not."""
NOISE = 4 * np.finfo(np.float64).eps
"""Float64 values whose range is below this share of the largest value differ only by rounding."""
OFFSETS = {"x": "normalisation/offset", "y": "normalisation/target_offset"}
NAMED = 5


class Extent:
    """The least and the largest value in each of ``groups`` runs of features, of equal length."""

    def __init__(self, groups: int):
        self._groups = groups
        self._low: np.ndarray | None = None
        self._high: np.ndarray | None = None
        self._rounded = np.zeros(groups, bool)
        """True for a group with close values, some of which float32 rounds."""

    def add(self, x: np.ndarray) -> None:
        """Add a block [b, features]; 8-bit values, exact in float32, are ignored."""
        if len(x) == 0 or x.dtype.itemsize == 1:
            return
        runs = x.reshape(len(x), self._groups, -1)
        low = runs.min(axis=(0, 2))
        high = runs.max(axis=(0, 2))
        # Values that float32 keeps exactly may lie closer together.
        if not np.can_cast(x.dtype, np.float32):
            for group in np.flatnonzero(_subtract(high, low) < 2 * NARROW * _largest(low, high)):
                values = runs[:, group]
                self._rounded[group] |= (values.astype(np.float32).astype(x.dtype) != values).any()
        self._low = low if self._low is None else np.minimum(low, self._low)
        self._high = high if self._high is None else np.maximum(high, self._high)

    def require_apart(self, what: str, source: str) -> None:
        """Raise DataError if values of a group, a ``what``, are too close together for float32."""
        if self._low is None or self._high is None:
            return
        low = self._low
        high = self._high
        spread = _subtract(high, low)
        largest = _largest(low, high)
        # Values of a constant column may differ by rounding; whole numbers do not.
        noise = NOISE * largest if low.dtype.kind == "f" else 0
        varying = (high > low) & (spread > noise)
        with np.errstate(over="ignore"):
            alike = low.astype(np.float32) == high.astype(np.float32)
        narrow = (spread < NARROWEST * largest) | (self._rounded & (spread < NARROW * largest))
        close = np.flatnonzero(varying & (alike | narrow))
        if len(close):
            raise DataError(
                f"{source}: values of {list_features(close, what)} are too close together for the "
                "24 bits of float32. Subtract a number from them first, or scale them."
            )


def subtract(x: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Return ``x - offset`` as float32, computed in float64; ``offset`` is [features]."""
    return _subtract(x, offset).astype(np.float32)


def _subtract(x: np.ndarray, other: np.ndarray) -> np.ndarray:
    if x.dtype.kind not in "iu" or x.dtype.itemsize < 8:
        return x.astype(np.float64, copy=False) - other
    # Float64 has 53 bits: the upper and the lower 32 bits of 64 are subtracted apart.
    high, low = _split_bits(x)
    other_high, other_low = _split_bits(other)
    return (high - other_high) * 2.0**32 + (low - other_low)


def _split_bits(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if x.dtype.kind in "iu":
        return (x >> 32).astype(np.float64), (x & 0xFFFFFFFF).astype(np.float64)
    high = np.floor(x * 2.0**-32)
    return high, x - high * 2.0**32


def _largest(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(low.astype(np.float64)), np.abs(high.astype(np.float64)))


def list_features(features: np.ndarray, what: str = "feature") -> str:
    some = ", ".join(map(str, features[:NAMED].tolist())) + ", ..." * (len(features) > NAMED)
    return f"{counted(len(features), what)} (number {some})"
