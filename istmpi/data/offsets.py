"""Numbers too close together for float32, such as Unix times: an offset is subtracted from them first, in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from istmpi.units import counted

NARROW = 2.0**-12
"""The share of the largest value below which values that float32 rounds need an offset: 4,096 steps."""
NARROWEST = 2.0**-19
"""Likewise where float32 has each of them: their mean would be rounded to one of 32 steps."""
NOISE = 4 * np.finfo(np.float64).eps
"""Floats that differ by a smaller share of the largest differ by rounding."""
OFFSETS = {"x": "normalisation/offset", "y": "normalisation/target_offset"}
"""The datasets of a prepared file with the offsets of examples and of numbers to predict."""
NAMED = 5


class NarrowError(Exception):
    """Raised when written rows need ``offsets``, by dataset name; the file is then written again with them."""

    def __init__(self, offsets: Mapping[str, np.ndarray]):
        super().__init__(", ".join(offsets))
        self.offsets = offsets


class Extent:
    """The least and the largest value of each feature of a stream of blocks, in their own type."""

    def __init__(self, ends: tuple[np.ndarray, np.ndarray] | None = None, rounded: np.ndarray | bool = False):
        self._ends, self._rounded = ends, rounded
        """The features with values that are none of float32; found where these are close together."""

    def add(self, x: np.ndarray) -> None:
        """Take in a block [b, features]; bytes, which lose nothing, are passed over."""
        if len(x) == 0 or x.dtype.itemsize == 1:
            return
        block = Extent((x.min(axis=0), x.max(axis=0)), np.zeros(x.shape[1], bool))
        if not np.can_cast(x.dtype, np.float32):
            for feature in np.flatnonzero(block._closer_than(2 * NARROW)):
                values = x[:, feature]
                block._rounded[feature] = (values.astype(np.float32).astype(x.dtype) != values).any()
        both = self.merged(block)
        self._ends, self._rounded = both._ends, both._rounded

    def merged(self, other: Extent) -> Extent:
        if self._ends is None or other._ends is None:
            return other if self._ends is None else self
        ends = np.minimum(self._ends[0], other._ends[0]), np.maximum(self._ends[1], other._ends[1])
        return Extent(ends, self._rounded | other._rounded)

    def grouped(self, groups: int) -> Extent:
        """Return the extent with the least and largest value of each of ``groups`` equal runs of features."""
        if self._ends is None:
            return self
        low, high, rounded = (values.reshape(groups, -1) for values in (*self._ends, self._rounded))
        runs = low.shape[1]
        ends = low.min(axis=1).repeat(runs), high.max(axis=1).repeat(runs)
        return Extent(ends, rounded.any(axis=1).repeat(runs))

    def where_constant(self, other: Extent) -> Extent:
        """Return this extent, with the ends of another extent for features that have one value here."""
        if self._ends is None or other._ends is None:
            return self
        varies = self._ends[1] > self._ends[0]
        ends = tuple(np.where(varies, end, more) for end, more in zip(self._ends, other._ends))
        return Extent(ends, np.where(varies, self._rounded, other._rounded))

    def offset(self) -> np.ndarray | None:
        """Return the middle of the features that need an offset, 0 of others; None where none needs one."""
        if self._ends is None:
            return None
        low, high = self._ends
        narrow = self._varying & (self._closer_than(NARROWEST) | (self._rounded & self._closer_than(NARROW)))
        middle = low / 2 + high / 2
        return np.where(narrow, middle, 0.0).astype(np.float64) if narrow.any() else None

    @property
    def rounding(self) -> np.ndarray:
        return np.flatnonzero((self._ends[1] > self._ends[0]) & ~self._varying) if self._ends else np.array([], int)

    @property
    def lost(self) -> np.ndarray:
        if self._ends is None:
            return np.array([], int)
        with np.errstate(over="ignore"):
            low, high = (end.astype(np.float32) for end in self._ends)
        return np.flatnonzero(self._varying & (low == high))

    def remarks(self, what: str, offset: np.ndarray | None) -> Iterator[str]:
        """Yield remarks for the user on features whose values rounding affects; ``offset`` was subtracted from them."""
        kept = np.flatnonzero(0 if offset is None else offset)
        for features, text in (
            (kept, "too close together for float32, less an offset that is subtracted in float64"),
            (self.rounding, "differ in the last digits of float64 alone, taken for constant"),
            (np.setdiff1d(self.lost, kept), "one value in float32 and so constant; scale them to keep them"),
        ):
            if len(features):
                yield f"values of {named(features, what)}: {text}"

    def _closer_than(self, share: float) -> np.ndarray:
        return _less(self._ends[1], self._ends[0]) < share * self._largest

    @property
    def _largest(self) -> np.ndarray:
        return np.maximum(*(np.abs(end.astype(np.float64)) for end in self._ends))

    @property
    def _varying(self) -> np.ndarray:
        low, high = self._ends
        least = NOISE * self._largest if low.dtype.kind == "f" else 0
        return (high > low) & (_less(high, low) > least)


class Differences:
    """Rows of several names on their way into float32, each with features in ``groups`` that are alike."""

    def __init__(self, groups: Mapping[str, int]):
        self._groups = dict(groups)
        self._train, self._others = ({name: Extent() for name in groups} for _ in range(2))
        self.offsets: Mapping[str, np.ndarray] = {}
        """The offsets [features] float64 by the rows' names."""

    def taken(self, split: str, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the next rows [b, features] of a split, less their offsets."""
        for name in self._groups:
            (self._train if split == "train" else self._others)[name].add(rows[name])
        return {**rows, **{name: less(rows[name], offset) for name, offset in self.offsets.items()}}

    def require_kept(self) -> None:
        """Raise NarrowError for rows that need offsets, by the training rows, or by all where these are constant."""
        needed = {
            name: self._train[name].grouped(groups).where_constant(self._all(name).grouped(groups)).offset()
            for name, groups in self._groups.items()
        }
        if not self.offsets and (offsets := {name: offset for name, offset in needed.items() if offset is not None}):
            raise NarrowError(offsets)

    @property
    def remarks(self) -> Iterator[str]:
        for name, what in (("x", "feature"), ("y", "output")):
            if name in self._groups:
                yield from self._all(name).remarks(what, self.offsets.get(name))

    def _all(self, name: str) -> Extent:
        return self._train[name].merged(self._others[name])


def less(x: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Return x less an offset [features] float64, as float32; the difference is exact, or float64's."""
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


def named(features: np.ndarray, what: str = "feature") -> str:
    some = ", ".join(map(str, features[:NAMED].tolist())) + ", ..." * (len(features) > NAMED)
    return f"{counted(len(features), what)} (number {some})"
