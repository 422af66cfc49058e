"""Rows of numbers as examples, normalised to float32 when they are read, and the content of their
prepared file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from istmpi.data.batch import Batch
from istmpi.data.dataset import Split, checksum_of, require_finite, sample_of
from istmpi.data.hdf5 import Opened, PreparedFile
from istmpi.data.moments import OFFSETS, Extent, Moments, Normalisation
from istmpi.data.writer import Material, Rows
from istmpi.hdf5 import names_array
from istmpi.tasks import TASKS

SAMPLE_ROWS, SAMPLE_BYTES = 1024, 2**24


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
    guard: Callable[[np.ndarray], None] | None = None
    """Verifies rows of ``x`` before they are read; called with the row numbers."""
    shape: tuple[int, ...] = ()
    input_shape: tuple[int, ...] = ()
    targets: tuple[np.ndarray, np.ndarray] | None = None
    """The mean and deviation by which batches standardise ``y``; None if not used."""
    chosen: np.ndarray | None = None
    offset: np.ndarray | None = None
    """Float64 ``[features]`` that was subtracted from the data to get ``x``; None without an
    offset."""
    shift: np.ndarray | None = None
    """Float64 ``[features]`` to add to ``x`` before it is normalised; None if nothing is added."""

    def __post_init__(self) -> None:
        # A plain view: memmap's own indexing runs Python code for every result.
        self.x, self.y = self.x.view(np.ndarray), self.y.view(np.ndarray)
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

        x = self._features_for(indices, key)
        inputs = torch.from_numpy(x.reshape(len(x), *self.input_shape))
        y = self.y.take(self.places(indices), axis=0)
        if self.targets is not None:
            mean, std = self.targets
            y = (y - mean) / std
        return Batch((inputs,), torch.from_numpy(y), len(x))

    def _features_for(self, indices: np.ndarray, key: int | None) -> np.ndarray:
        return self.features(indices)

    def features(self, indices: np.ndarray) -> np.ndarray:
        """Return copies of the rows ``indices``: ``[b, features]`` float32, C-contiguous, (x -
        mean) / std."""
        return self._normalised(self._taken(indices))

    def _taken(self, indices: np.ndarray) -> np.ndarray:
        rows = self.places(indices)
        if self.guard is not None:
            self.guard(rows)
        return self.x.take(rows, axis=0)

    def _normalised(self, x: np.ndarray) -> np.ndarray:
        if self.shift is not None:
            x = x + self.shift
        x = x.astype(np.float32, copy=False)
        if self.mean is not None:
            x -= self.mean
            x /= self.std
        return x

    def labels(self) -> np.ndarray:
        return self.y if self.chosen is None else self.y[self.chosen]

    def hold_out(self, fraction: float, seed: int) -> tuple[Split, Split]:
        return super().hold_out(fraction, seed, self.labels() if self.y.ndim == 1 else None)

    def normalised_by(self, normalisation: Normalisation | None) -> DenseSplit:
        if normalisation is None:
            return replace(self, mean=None, std=None, shift=None)
        mean, std, offset = normalisation
        return replace(self, mean=mean, std=std, shift=_difference(self.offset, offset))

    def with_target_offset(self, there: np.ndarray | None, here: np.ndarray | None) -> DenseSplit:
        shift = _difference(there, here)
        return self if shift is None else replace(self, y=(self.y + shift).astype(np.float32))

    def standardised(self, targets: tuple[np.ndarray, np.ndarray] | None) -> DenseSplit:
        return replace(self, targets=targets)

    def reshaped(self, shape: tuple[int, ...]) -> DenseSplit:
        assert prod(shape) == prod(self.read_shape), (shape, self.read_shape)
        other = copy(self)  # keeps cached checksums, which no shape changes
        other.input_shape = tuple(shape)
        return other

    @cached_property
    def features_checksum(self) -> int:
        """CRC-32 of the normalised x, or of a sample of rows, without ``guard``, which would read
        whole blocks."""
        row_bytes = 4 * self.x.shape[1]
        fitting = SAMPLE_BYTES // row_bytes
        rows = sample_of(len(self), fitting, min(max(fitting, 1), SAMPLE_ROWS))
        read = replace(self, guard=None).features
        return checksum_of(rows, lambda part: [read(part)], max(2**20 // row_bytes, 1))


def _difference(there: np.ndarray | None, here: np.ndarray | None) -> np.ndarray | None:
    if there is None and here is None or np.array_equal(there, here):
        return None
    return (0 if there is None else there) - (0 if here is None else here)


def open_rows(file: PreparedFile, rows: type[DenseSplit] = DenseSplit) -> Opened:
    mean, std = (np.array(file.mapped(f"normalisation/{name}")) for name in ("mean", "std"))
    offset, target_offset = (
        np.array(file.mapped(OFFSETS[name])) if file.has(OFFSETS[name]) else None
        for name in ("x", "y")
    )
    splits = {}
    for split in file.splits:
        (x, guard), y = file.guarded(f"{split}/x"), file.mapped(f"{split}/y")
        splits[split] = rows(x, y, mean, std, guard, file.shape, offset=offset)
    facts = {"mean": mean, "std": std, "offset": offset, "target_offset": target_offset}
    return splits, facts | {"output_names": file.names("outputs")}


FLOATS, BYTES = np.dtype("<f4"), np.dtype("u1")
BLOCK = 2**20
"""The approximate number of features in a block."""


def material_of(
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

    x is read in slices, and has the type ``dtype`` in the file. ``groups`` means and deviations
    normalise x. Raises DataError for features that are not finite, and for numbers too close
    together for float32.
    """
    shape = splits["train"][0].shape[1:]
    features, goal, numbers = prod(shape), TASKS[task], TASKS[task].predicts_numbers
    outputs = len(classes) if classes is not None else splits["train"][1].shape[1]
    moments, extent, step = Moments(features), Extent(groups), rows_per_block(features)
    names, counts = {"classes": classes, "outputs": output_names}, {}
    datasets = {path: names_array(values) for path, values in names.items() if values is not None}
    for split, (x, y) in splits.items():
        counts[split] = len(y)
        for start in range(0, len(y), step):
            rows = np.asarray(x[start : start + step]).reshape(-1, features)
            require_finite(rows, f"{split} example", source, start)
            if split == "train":
                extent.add(rows)
                moments.add(np.ascontiguousarray(rows, dtype))
        datasets[f"{split}/x"] = Rows(x, dtype)
        datasets[f"{split}/y"] = np.ascontiguousarray(
            y, "<i8" if goal.one_class else FLOATS if numbers else BYTES
        )
    extent.require_apart("feature", source)
    if numbers:
        extent = Extent(outputs)
        extent.add(splits["train"][1])
        extent.require_apart("output", source)
    mean, std, _ = moments.normalisation(groups)
    datasets |= {"normalisation/mean": mean, "normalisation/std": std}
    return Material(
        source, task, shape, outputs, classes, counts, {"shape": shape}, datasets, skipped
    )


def rows_per_block(features: int) -> int:
    return max(1, BLOCK // features)
