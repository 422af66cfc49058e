"""Rows of numbers as examples, normalised to float32 when they are read, and the content of their
prepared file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from istmpi.data.batch import Batch
from istmpi.data.dataset import Split, checksum_rows, draw_sample, require_finite
from istmpi.data.hdf5 import Guard, Opened, PreparedFile
from istmpi.data.moments import OFFSETS, Extent, Moments, Normalisation
from istmpi.data.writer import Material, Rows
from istmpi.hdf5 import names_array
from istmpi.tasks import TASKS, Regression

SAMPLE_ROWS = 1024
SAMPLE_BYTES = 2**24


@dataclass(eq=False)
class DenseSplit(Split):
    """Rows of numbers; ``x`` and ``y`` may be memory maps."""

    x: np.ndarray
    """``[n, features]`` of float32 or uint8."""
    y: np.ndarray
    """Classes ``[n]`` int64, numbers ``[n, outputs]`` float32, or several labels ``[n, outputs]``
    uint8."""
    mean: np.ndarray | None = None
    std: np.ndarray | None = None
    guard: Guard | None = None
    """Verifies rows of ``x`` before they are read; called with the row numbers."""
    shape: tuple[int, ...] = ()
    input_shape: tuple[int, ...] = ()
    targets: tuple[np.ndarray, np.ndarray] | None = None
    """The mean and deviation by which batches standardise ``y``; None if not used."""
    offset: np.ndarray | None = None
    """Float64 ``[features]`` that was subtracted from the data to get ``x``; None without an
    offset."""
    shift: np.ndarray | None = None
    """Float64 ``[features]`` to add to ``x`` before it is normalised; None if nothing is added."""

    def __post_init__(self) -> None:
        # A plain view: memmap's own indexing runs Python code for every result.
        self.x = self.x.view(np.ndarray)
        self.y = self.y.view(np.ndarray)
        self.shape = tuple(self.shape) or self.x.shape[1:]
        self.input_shape = tuple(self.input_shape) or self.read_shape
        assert self.x.ndim == 2 and len(self.x) == len(self.y), (self.x.shape, self.y.shape)
        assert prod(self.shape) == self.x.shape[1], (self.shape, self.x.shape)
        assert prod(self.read_shape) == prod(self.input_shape), (self.read_shape, self.input_shape)
        assert (self.mean is None) == (self.std is None)

    def __len__(self) -> int:
        return len(self.y if self.chosen is None else self.chosen)

    @property
    def read_shape(self) -> tuple[int, ...]:
        return self.shape

    def batch(self, indices: np.ndarray, key: int | None = None) -> Batch:
        import torch

        x = self._read(indices, key)
        # x is a copy of its rows, so torch may share its memory.
        inputs = torch.from_numpy(x.reshape(len(x), *self.input_shape))
        y = self.y.take(self.find_rows(indices), axis=0)
        if self.targets is not None:
            mean, std = self.targets
            y = (y - mean) / std
        return Batch((inputs,), torch.from_numpy(y), len(x))

    def _read(self, indices: np.ndarray, key: int | None) -> np.ndarray:
        """Return the features of a batch; ``key`` seeds the random changes of a subclass."""
        return self.features(indices)

    def features(self, indices: np.ndarray) -> np.ndarray:
        """Return copies of the rows ``indices``: ``[b, features]`` float32, C-contiguous, (x -
        mean) / std."""
        return self._normalise(self._take(indices))

    def _take(self, indices: np.ndarray) -> np.ndarray:
        rows = self.find_rows(indices)
        if self.guard is not None:
            self.guard(rows)
        return self.x.take(rows, axis=0)

    def _normalise(self, x: np.ndarray) -> np.ndarray:
        # Added in float64: float32 would round the difference of two close offsets away.
        if self.shift is not None:
            x = x + self.shift
        x = x.astype(np.float32, copy=False)
        if self.mean is not None:
            x -= self.mean
            x /= self.std
        return x

    def labels(self) -> np.ndarray:
        return self.y if self.chosen is None else self.y[self.chosen]

    def balanced_classes(self) -> np.ndarray | None:
        return self.labels() if self.y.ndim == 1 else None

    def with_normalisation(self, normalisation: Normalisation | None) -> DenseSplit:
        if normalisation is None:
            return replace(self, mean=None, std=None, shift=None)
        mean, std, offset = normalisation
        return replace(self, mean=mean, std=std, shift=_subtract_offset(self.offset, offset))

    def with_target_offset(
        self, present: np.ndarray | None, target: np.ndarray | None
    ) -> DenseSplit:
        shift = _subtract_offset(present, target)
        if shift is None:
            return self
        return replace(self, y=(self.y + shift).astype(np.float32))

    def with_standard_targets(self, targets: tuple[np.ndarray, np.ndarray] | None) -> DenseSplit:
        return replace(self, targets=targets)

    def reshape(self, shape: tuple[int, ...]) -> DenseSplit:
        assert prod(shape) == prod(self.read_shape), (shape, self.read_shape)
        # A copy keeps cached checksums, which no shape changes.
        other = copy(self)
        other.input_shape = tuple(shape)
        return other

    @cached_property
    def features_checksum(self) -> int:
        """CRC-32 of the normalised x, or of a sample of rows, without ``guard``, which would read
        whole blocks."""
        row_bytes = 4 * self.x.shape[1]
        fitting = SAMPLE_BYTES // row_bytes
        rows = draw_sample(len(self), fitting, min(max(fitting, 1), SAMPLE_ROWS))
        # A sample of rows over the whole file would read almost every block for its checksum.
        read = replace(self, guard=None).features
        return checksum_rows(rows, lambda part: [read(part)], max(2**20 // row_bytes, 1))


def _subtract_offset(present: np.ndarray | None, target: np.ndarray | None) -> np.ndarray | None:
    """Return what to add to values with one offset to get those with another; None for nothing."""
    if present is None:
        return None if target is None else 0 - target
    if target is None:
        return present
    if np.array_equal(present, target):
        return None
    return present - target


def open_rows(file: PreparedFile, rows: type[DenseSplit] = DenseSplit) -> Opened:
    """Return the splits of a prepared file, and the facts of its data set."""
    mean = np.array(file.map("normalisation/mean"))
    std = np.array(file.map("normalisation/std"))
    offset = _read_offset(file, OFFSETS["x"])
    target_offset = _read_offset(file, OFFSETS["y"])
    splits = {}
    for split in file.splits:
        x, guard = file.map_guarded(f"{split}/x")
        y = file.map(f"{split}/y")
        splits[split] = rows(x, y, mean=mean, std=std, guard=guard, shape=file.shape, offset=offset)
    facts = {
        "mean": mean,
        "std": std,
        "offset": offset,
        "target_offset": target_offset,
        "output_names": file.names("outputs"),
    }
    return splits, facts


def _read_offset(file: PreparedFile, name: str) -> np.ndarray | None:
    if not file.has(name):
        return None
    return np.array(file.map(name))


BLOCK = 2**20
"""The approximate number of features in a block."""


def build_material(
    source: str,
    task: str,
    splits: Mapping[str, tuple[Any, np.ndarray]],
    classes: tuple[str, ...] | None,
    dtype: np.dtype,
    groups: int,
    skipped: Sequence[str] = (),
    output_names: tuple[str, ...] | None = None,
) -> Material:
    """Return the content of a prepared file; ``splits`` has x [n, ...] and y [n] or [n, outputs].

    x is read in slices as ``dtype``; ``groups`` means and deviations normalise it. Raises DataError
    for features that are not finite, and for numbers too close together for float32.
    """
    x, y = splits["train"]
    outputs = y.shape[1] if classes is None else len(classes)
    normalisation = _check_features(source, splits, dtype, groups)
    target_type = TASKS[task].target_type
    if target_type == Regression.target_type:
        _require_apart(y, source)
    names = {"classes": classes, "outputs": output_names}
    datasets: dict[str, Any] = {path: names_array(words) for path, words in names.items() if words}
    for split, (rows, targets) in splits.items():
        datasets[f"{split}/x"] = Rows(rows, dtype)
        datasets[f"{split}/y"] = np.ascontiguousarray(targets, target_type)
    datasets["normalisation/mean"] = normalisation.mean
    datasets["normalisation/std"] = normalisation.std
    return Material(
        source=source,
        task=task,
        shape=x.shape[1:],
        outputs=outputs,
        classes=classes,
        counts={split: len(y) for split, (_, y) in splits.items()},
        attributes={"shape": x.shape[1:]},
        datasets=datasets,
        skipped=skipped,
    )


def _check_features(
    source: str, splits: Mapping[str, tuple[Any, np.ndarray]], dtype: np.dtype, groups: int
) -> Normalisation:
    """Read all features once; return the normalisation of the training examples.

    Raises DataError for features that are not finite or too close together.
    """
    features = prod(splits["train"][0].shape[1:])
    step = rows_per_block(features)
    moments = Moments(features)
    extent = Extent(groups)
    for split, (x, y) in splits.items():
        # x may be larger than memory.
        for start in range(0, len(y), step):
            rows = np.asarray(x[start : start + step]).reshape(-1, features)
            require_finite(rows, f"{split} example", source, start)
            if split == "train":
                # The numbers as they are given: those of `dtype` are rounded already.
                extent.add(rows)
                moments.add(np.ascontiguousarray(rows, dtype))
    extent.require_apart("feature", source)
    return moments.normalisation(groups)


def _require_apart(y: np.ndarray, source: str) -> None:
    """Raise DataError if numbers to predict [n, outputs] are too close together for float32."""
    extent = Extent(y.shape[1])
    extent.add(y)
    extent.require_apart("output", source)


def rows_per_block(features: int) -> int:
    return max(1, BLOCK // features)
