"""Finds the differences of two checkpoints: settings, facts and tensors, read side by side, a few rows at a time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import h5py
import numpy as np

from istmpi.checkpoint.reader import Checkpoint
from istmpi.checkpoint.summary import header_values
from istmpi.hdf5 import datasets, dtype_name

_CHUNK = 2**22
"""Elements compared at a time, which bounds the memory."""
_NEVER_ALIKE = ("run", "seconds")
"""Facts of the header that are compared elsewhere, or that no two runs have in common."""


@dataclass(frozen=True)
class TensorDifference:
    """A dataset in which two checkpoints differ."""

    name: str
    problem: str | None
    """The reason why its values cannot be compared."""
    elements: int = 0
    differing: int = 0
    largest: float | None = None
    """The largest absolute difference; None where it is of texts."""
    largest_relative: float | None = None
    """The largest difference divided by the larger of both absolute values."""


def settings(one: Checkpoint, other: Checkpoint) -> dict[str, tuple[Any, Any]]:
    """Return the settings and other facts of the headers that differ."""
    differing = one.header.run.differences(other.header.run)
    first, second = (_flat(header_values(checkpoint.header)) for checkpoint in (one, other))
    facts = {name: (first.get(name), second.get(name)) for name in {**first, **second}}
    return differing | {name: pair for name, pair in facts.items() if pair[0] != pair[1]}


def tensors(one: Checkpoint, other: Checkpoint) -> Iterator[TensorDifference]:
    """Yield the differences of all datasets but checksums."""
    first, second = datasets(one.file), datasets(other.file)
    for name in [*first, *(name for name in second if name not in first)]:
        if name not in second or name not in first:
            yield TensorDifference(name, f"only in {(one if name in first else other).path}")
            continue
        a, b = first[name], second[name]
        if a.shape != b.shape or dtype_name(a) != dtype_name(b):
            yield TensorDifference(name, f"{a.shape} {dtype_name(a)} and {b.shape} {dtype_name(b)}")
            continue
        difference = _compare(name, a, b)
        if difference.differing:
            yield difference


def _compare(name: str, one: h5py.Dataset, other: h5py.Dataset) -> TensorDifference:
    rows, differing, largest, relative = len(one), 0, 0.0, 0.0
    numbers = one.dtype.kind in "fiu"
    step = max(_CHUNK // max(prod(one.shape[1:]), 1), 1)
    for start in range(0, rows, step):
        a, b = one[start : start + step], other[start : start + step]
        differ = a != b
        if one.dtype.kind == "f":
            differ &= ~(np.isnan(a) & np.isnan(b))
        differing += int(differ.sum())
        if numbers and differ.any():
            a, b = a[differ].astype(np.float64), b[differ].astype(np.float64)
            with np.errstate(invalid="ignore"):
                distance = np.abs(a - b)
                ratio = distance / np.maximum(np.abs(a), np.abs(b))
            # A number against NaN or infinity: no difference is larger.
            distance[~np.isfinite(distance)] = ratio[~np.isfinite(ratio)] = np.inf
            largest, relative = max(largest, float(distance.max())), max(relative, float(ratio.max()))
    if not numbers:
        return TensorDifference(name, None, one.size, differing)
    return TensorDifference(name, None, one.size, differing, largest, relative)


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    flat = {}
    for name, value in values.items():
        if name in _NEVER_ALIKE:
            continue
        flat |= {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    return flat
