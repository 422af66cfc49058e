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

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from istmpi.data.dataset import Dataset
from istmpi.data.sparse.split import Ragged, SparseSplit
from istmpi.data.writer import Material
from istmpi.tasks import MULTI_LABEL

if TYPE_CHECKING:
    from istmpi.data.hdf5 import PreparedFile

OFFSETS, NUMBERS, VALUES = np.dtype("<i8"), np.dtype("<i4"), np.dtype("<f4")


def material_of(
    source: str,
    features: int,
    outputs: int,
    splits: Mapping[str, tuple[Ragged, Ragged]],
    facts: Mapping[str, Any] | None = None,
) -> Material:
    """Return sparse rows on their way into a file: the features and the labels of each split's rows."""
    attributes, datasets = {"shape": (features,)}, {}
    for split, (rows, labels) in splits.items():
        columns, values = rows.arrays
        attributes |= {f"{split}_values": len(values), f"{split}_labels": len(labels.arrays[0])}
        arrays = {"indptr": (rows.offsets, OFFSETS), "indices": (columns, NUMBERS), "data": (values, VALUES)}
        arrays |= {"label_indptr": (labels.offsets, OFFSETS), "label_indices": (labels.arrays[0], NUMBERS)}
        datasets |= {f"{split}/{name}": np.ascontiguousarray(*array) for name, array in arrays.items()}
    counts = {split: len(rows) for split, (rows, _) in splits.items()}
    of_rows = "xc", source, MULTI_LABEL, (features,), outputs, None, counts, attributes, datasets
    return Material(*of_rows, facts=facts or {})


def open_rows(file: PreparedFile) -> Dataset:
    splits = {split: _split(file, split) for split in file.splits}
    return Dataset(splits, MULTI_LABEL, file.shape, file.outputs, None, file.text("source"), file.text("kind"))


def _split(file: PreparedFile, split: str) -> SparseSplit:
    indptr, columns, data, label_indptr, label_columns = (
        file.mapped(f"{split}/{name}") for name in ("indptr", "indices", "data", "label_indptr", "label_indices")
    )
    guards = file.guard(f"{split}/indices", columns), file.guard(f"{split}/data", data)
    return SparseSplit(Ragged(indptr, (columns, data)), Ragged(label_indptr, (label_columns,)), guards)
