"""Sparse rows in a prepared file: compressed sparse rows (CSR) of features and of labels for each split.

/                       attributes as of other data, task "multi-label", shape (features), outputs (the labels);
                        train, test[, validation] (rows), and of each split SPLIT_values and SPLIT_labels (numbers)
/SPLIT/indptr           (rows + 1) int64: row i has the numbers indptr[i] to indptr[i + 1] of indices and data
/SPLIT/indices          (values) int32: numbers of features from 0
/SPLIT/data             (values) float32
/SPLIT/label_indptr     (rows + 1) int64
/SPLIT/label_indices    (labels) int32: numbers of labels from 0
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from istmpi.data.dataset import Dataset
from istmpi.data.sparse.split import Ragged, SparseSplit
from istmpi.data.writer import FileWriter, Material
from istmpi.tasks import MULTI_LABEL

if TYPE_CHECKING:
    from istmpi.data.hdf5 import PreparedFile

OFFSETS, NUMBERS, VALUES = np.dtype("<i8"), np.dtype("<i4"), np.dtype("<f4")


@dataclass(frozen=True)
class Facts:
    """Facts on sparse rows for a report; rates of features and labels a row are of training."""

    labels: int
    trained_labels: int
    features_per_row: float
    labels_per_row: float
    without_features: int
    """Rows that were dropped, with or without labels."""
    without_labels: int
    """Other rows that were dropped."""
    repeated: int


class Writer(FileWriter):
    def __init__(self, target: str | os.PathLike, material: Material, force: bool = False):
        super().__init__(target, material, force)
        self._ends: dict[str, tuple[int, int]] = {}

    def append(self, split: str, rows: Ragged, labels: Ragged) -> None:
        if split not in self._ends:
            super().append(split, indptr=np.zeros(1), label_indptr=np.zeros(1))
            self._ends[split] = 0, 0
        indptr, label_indptr = (lists.offsets[1:] + end for lists, end in zip((rows, labels), self._ends[split]))
        columns, values = rows.arrays
        super().append(split, indptr=indptr, indices=columns, data=values)
        super().append(split, label_indptr=label_indptr, label_indices=labels.arrays[0])
        self._ends[split] = int(indptr[-1]), int(label_indptr[-1])


def material_of(
    source: str,
    features: int,
    outputs: int,
    counts: Mapping[str, int],
    values: Mapping[str, int],
    labels: Mapping[str, int],
    facts: Facts | None = None,
    blocks: Iterable[tuple[str, Ragged, Ragged]] = (),
) -> Material:
    """Return sparse rows on their way into a file; ``counts``, ``values`` and ``labels`` are numbers of each split."""
    attributes, datasets = {"shape": (features,)}, {}
    for split, count in counts.items():
        attributes |= {f"{split}_values": values[split], f"{split}_labels": labels[split]}
        datasets[f"{split}/indptr"] = datasets[f"{split}/label_indptr"] = (count + 1,), OFFSETS
        datasets[f"{split}/indices"] = (values[split],), NUMBERS
        datasets[f"{split}/data"] = (values[split],), VALUES
        datasets[f"{split}/label_indices"] = (labels[split],), NUMBERS
    of_rows = "xc", source, MULTI_LABEL, (features,), outputs, None, counts, attributes, {}, datasets
    return Material(*of_rows, blocks, Writer, facts={"rows": facts})


def open_rows(file: PreparedFile) -> Dataset:
    shape, outputs = file.shape, file.outputs
    if len(shape) != 1 or not 0 < shape[0] < 2**31 or not 0 < outputs < 2**31:
        raise file.error(f"has examples of shape {shape} and {outputs} labels; prepare it again")
    splits = {split: _split(file, split, shape[0], outputs) for split in file.splits}
    return Dataset(splits, MULTI_LABEL, shape, outputs, None, file.text("source"), file.text("kind"))


def _split(file: PreparedFile, split: str, features: int, outputs: int) -> SparseSplit:
    count, values, labels = (int(file.attribute(name)) for name in (split, f"{split}_values", f"{split}_labels"))
    if min(count, values, labels) < 1:
        raise file.error(f"has {count} {split} rows with {values} values and {labels} labels; prepare it again")
    indptr = file.offsets(f"{split}/indptr", count, values)
    label_indptr = file.offsets(f"{split}/label_indptr", count, labels)
    columns = file.numbers(f"{split}/indices", (values,), NUMBERS, 0, features, all=False)
    label_columns = file.numbers(f"{split}/label_indices", (labels,), NUMBERS, 0, outputs)
    data = file.mapped(f"{split}/data", (values,), (VALUES,))
    if not np.isfinite(data[: 2**20]).all():
        raise file.error(f"has values in {split}/data that are not finite; prepare it again")
    guards = file.guard(f"{split}/indices", columns), file.guard(f"{split}/data", data)
    return SparseSplit(Ragged(indptr, (columns, data)), Ragged(label_indptr, (label_columns,)), guards)
