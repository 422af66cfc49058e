"""Examples in a prepared file (docs/formats.md): rows of numbers with a class, several labels or numbers to predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from istmpi.data.dataset import require_finite
from istmpi.data.images.split import examples_of
from istmpi.data.moments import OFFSETS, Extent, Moments, Normalisation
from istmpi.data.writer import Material, Rows
from istmpi.hdf5 import names_array
from istmpi.tasks import TASKS

if TYPE_CHECKING:
    from istmpi.data.hdf5 import Opened, PreparedFile

FLOATS, BYTES = np.dtype("<f4"), np.dtype("u1")
BLOCK = 2**20
"""Features of a block, about."""


def material_of(
    kind: str,
    source: str,
    task: str,
    splits: Mapping[str, tuple[Any, np.ndarray]],
    classes: tuple[str, ...] | None,
    dtype: np.dtype,
    groups: int,
    skipped: Sequence[str] = (),
    output_names: tuple[str, ...] | None = None,
) -> Material:
    """Return examples on their way into a file: x [n, ...], sliced as needed, and y [n] or [n, outputs] per split.

    ``dtype`` is that of x in the file; ``groups`` are the means and deviations that normalise it. DataError for
    features that are not finite, or too close together for float32.
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
        datasets[f"{split}/y"] = np.ascontiguousarray(y, "<i8" if goal.one_class else FLOATS if numbers else BYTES)
    extent.require_apart("feature", source)
    if numbers:
        extent = Extent(outputs)
        extent.add(splits["train"][1])
        extent.require_apart("output", source)
    mean, std, _ = moments.normalisation(groups)
    datasets |= {"normalisation/mean": mean, "normalisation/std": std}
    return Material(kind, source, task, shape, outputs, classes, counts, {"shape": shape}, datasets, skipped)


def rows_per_block(features: int) -> int:
    return max(1, BLOCK // features)


def open_examples(file: PreparedFile) -> Opened:
    shape, kind = file.shape, file.text("kind")
    mean, std = (np.array(file.mapped(f"normalisation/{name}")) for name in ("mean", "std"))
    offset, target_offset = (
        np.array(file.mapped(OFFSETS[name])) if file.has(OFFSETS[name]) else None for name in ("x", "y")
    )
    normalisation, splits = Normalisation(mean, std, offset), {}
    for split in file.splits:
        (x, guard), y = file.guarded(f"{split}/x"), file.mapped(f"{split}/y")
        splits[split] = examples_of(kind, shape, x, y, normalisation, guard)
    facts = {"output_names": file.names("outputs"), "target_offset": target_offset}
    return splits, normalisation._asdict() | facts
