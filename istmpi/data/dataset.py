"""What training sees of a data set: named splits of float32 rows, normalised as they are read."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from istmpi import rng
from istmpi.errors import DataError

CLASSIFICATION = "classification"
REGRESSION = "regression"
TASKS = (CLASSIFICATION, REGRESSION)

SPLITS = ("train", "test", "validation")
"""Every data set has the first two."""


SAMPLE_ROWS, SAMPLE_BYTES = 1024, 2**24
"""Rows of which the features' fingerprint is made, at most, where all of them together are more bytes than these."""


class Split:
    """Examples that are read by row number and normalised on the way out.

    ``x`` [n, features] of float32 or uint8 and ``y`` [n] int64 or [n, outputs] float32 may be memory maps: only the
    rows that are asked for are ever touched. ``mean`` and ``std`` [features] float32 come together or not at all.
    ``guard`` is told of rows before they are read.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        mean: np.ndarray | None = None,
        std: np.ndarray | None = None,
        guard: Callable[[np.ndarray], None] | None = None,
    ):
        assert x.ndim == 2 and len(x) == len(y), (x.shape, y.shape)
        assert (mean is None) == (std is None)
        # A plain view: memmap's own indexing runs Python code for every result.
        self._x = x.view(np.ndarray)
        self._y = y.view(np.ndarray)
        self._mean, self._std = mean, std
        self._guard = guard

    def __len__(self) -> int:
        return len(self._y)

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Copies of the examples ``indices`` [b]: x [b, features] float32, C-contiguous, (x - mean) / std; and y."""
        if self._guard is not None:
            self._guard(indices)
        return self._features(indices), self._y.take(indices, axis=0)

    def _features(self, indices: np.ndarray) -> np.ndarray:
        x = self._x.take(indices, axis=0).astype(np.float32, copy=False)
        if self._mean is not None:
            normalise(x, self._mean, self._std)
        return x

    def normalised_by(self, normalisation: tuple[np.ndarray, np.ndarray] | None) -> "Split":
        """The same examples with another mean and deviation, or as they are stored."""
        mean, std = normalisation or (None, None)
        return Split(self._x, self._y, mean, std, self._guard)

    def labels(self) -> np.ndarray:
        """All of y, without reading any x: [n] int64 or [n, outputs] float32; not to be written to."""
        return self._y

    @cached_property
    def labels_checksum(self) -> int:
        """CRC-32 of all of y."""
        return zlib.crc32(np.ascontiguousarray(self._y))

    @cached_property
    def features_checksum(self) -> int:
        """CRC-32 of x as training sees it: of all rows where they are few, else of the same sample of them everywhere.

        It does not depend on how x is stored. Among many rows a few that differ are likely to be missed. The ``guard``
        is not asked: it would read far more than the sample.
        """
        row_bytes = 4 * self._x.shape[1]
        rows = np.arange(len(self))
        if len(self) * row_bytes > SAMPLE_BYTES:
            count = min(max(SAMPLE_BYTES // row_bytes, 1), SAMPLE_ROWS)
            rows = np.sort(rng.bits(rng.key("fingerprint"), 0, count) % np.uint64(len(self))).astype(np.int64)
        checksum, step = 0, max(2**20 // row_bytes, 1)
        for start in range(0, len(rows), step):
            checksum = zlib.crc32(self._features(rows[start : start + step]), checksum)
        return checksum


def normalise(x: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
    """Turn examples ``[b, features]`` float32 into (x - mean) / std, in place."""
    x -= mean
    x /= std


def same_form(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Examples of these shapes have the same features in the same order; flattening and axes of length 1 are free."""
    one, other = (tuple(length for length in shape if length != 1) for shape in (one, other))
    return one == other or (prod(one) == prod(other) and min(len(one), len(other)) <= 1)


def require_finite(x: np.ndarray, split: str, source: str, first: int = 0) -> None:
    """Refuse features x [b, features] that are not finite in float32: a DataError names one.

    ``first`` is the number of the first of these examples.
    """
    if x.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):
        finite = np.isfinite(x.astype(np.float32, copy=False))
    if not finite.all():
        row, feature = np.argwhere(~finite)[0]
        raise DataError(
            f"{source}: {split} example {first + row} has {x[row, feature]} as feature {feature}; every feature must "
            "be finite, as a float32 is up to 3.4e38. Remove, fill or scale such examples first."
        )


@dataclass(frozen=True)
class Dataset:
    """A data set that is ready to train on.

    ``shape`` is that of one example before it was flattened to ``features`` numbers, channels first: [3, 32, 32] for a
    colour image, [features] where there is no such structure. ``outputs`` counts the classes, or the numbers to
    predict; ``classes`` are their names, None for regression. ``kind`` is that of `istmpi prepare`. The splits apply
    ``mean`` and ``std`` [features].
    """

    splits: Mapping[str, Split]
    task: str
    shape: tuple[int, ...]
    outputs: int
    classes: tuple[str, ...] | None
    source: str
    kind: str
    mean: np.ndarray | None = None
    std: np.ndarray | None = None

    @property
    def features(self) -> int:
        return int(np.prod(self.shape))

    def normalised_by(self, normalisation: tuple[np.ndarray, np.ndarray] | None) -> "Dataset":
        """The same data with the mean and the deviation of other data, such as a network was trained on."""
        splits = {name: split.normalised_by(normalisation) for name, split in self.splits.items()}
        mean, std = normalisation or (None, None)
        return replace(self, splits=splits, mean=mean, std=std)

    @property
    def train(self) -> Split:
        return self.splits["train"]

    @property
    def test(self) -> Split:
        return self.splits["test"]
