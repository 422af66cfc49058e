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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from istmpi.data.dataset import Dataset
from istmpi.data.sparse.split import Ragged, SparseSplit
from istmpi.data.writer import FileWriter
from istmpi.tasks import MULTI_LABEL

if TYPE_CHECKING:
    from istmpi.data.hdf5 import PreparedFile

LARGE = ("indices", "data")
"""Datasets of a split that are checked block by block as they are read."""
_LOOKED_AT = 2**20
"""Numbers at the start of each of them that are looked at when a file is opened."""
OFFSETS, NUMBERS, VALUES = np.dtype("<i8"), np.dtype("<i4"), np.dtype("<f4")


@dataclass(frozen=True)
class SparseHeader:
    """What a prepared file says of sparse rows; ``rows``, ``values`` and ``labels`` are counts per split."""

    kind: str
    source: str
    features: int
    outputs: int
    rows: Mapping[str, int]
    values: Mapping[str, int]
    labels: Mapping[str, int]


class SparseWriter(FileWriter):
    """A context in which blocks of sparse rows become a prepared file."""

    def __init__(self, target: str | os.PathLike, header: SparseHeader, force: bool = False):
        attributes = {"kind": header.kind, "source": header.source, "task": MULTI_LABEL}
        attributes |= {"shape": (header.features,), "outputs": header.outputs, "skipped": 0}
        attributes |= {f"{split}_values": count for split, count in header.values.items()}
        attributes |= {f"{split}_labels": count for split, count in header.labels.items()}
        super().__init__(target, attributes, header.rows, force)
        self._header = header
        self._ends = {split: [0, 0] for split in header.rows}

    def append(self, split: str, rows: Ragged, labels: Ragged) -> None:
        """Write the next rows of a split, of columns and values, and as many lists of labels."""
        first = self._ends[split]
        indptr, label_indptr = (of.offsets[1:] + end for of, end in zip((rows, labels), first))
        columns, values = rows.arrays
        numbers = {"indptr": (indptr, OFFSETS), "indices": (columns, NUMBERS), "data": (values, VALUES)}
        numbers |= {"label_indptr": (label_indptr, OFFSETS), "label_indices": (labels.arrays[0], NUMBERS)}
        self._append(split, {name: np.ascontiguousarray(of, dtype) for name, (of, dtype) in numbers.items()})
        self._ends[split] = [int(indptr[-1]), int(label_indptr[-1])]

    def _allocate(self) -> None:
        header = self._header
        for split, rows in header.rows.items():
            for name, count, dtype in (
                ("indptr", rows + 1, OFFSETS),
                ("indices", header.values[split], NUMBERS),
                ("data", header.values[split], VALUES),
                ("label_indptr", rows + 1, OFFSETS),
                ("label_indices", header.labels[split], NUMBERS),
            ):
                self._dataset(f"{split}/{name}", (count,), dtype)
            self._append(split, {name: np.zeros(1, OFFSETS) for name in ("indptr", "label_indptr")})


def read_sparse(file: PreparedFile) -> Dataset:
    """The data set of an open prepared file of sparse rows; DataError for what is damaged."""
    shape, outputs = tuple(int(length) for length in file.attribute("shape")), int(file.attribute("outputs"))
    if len(shape) != 1 or not 0 < shape[0] < 2**31 or not 0 < outputs < 2**31:
        raise file.error(f"has examples of shape {shape} and {outputs} labels; prepare it again")
    splits = {split: _split(file, split, shape[0], outputs) for split in file.splits}
    return Dataset(splits, MULTI_LABEL, shape, outputs, None, file.text("source"), file.text("kind"))


def _split(file: PreparedFile, split: str, features: int, outputs: int) -> SparseSplit:
    count, values, labels = (int(file.attribute(name)) for name in (split, f"{split}_values", f"{split}_labels"))
    if min(count, values, labels) < 1:
        raise file.error(f"has {count} {split} rows with {values} values and {labels} labels; prepare it again")
    indptr, label_indptr = (file.mapped(f"{split}/{of}indptr", (count + 1,), (OFFSETS,)) for of in ("", "label_"))
    columns = file.mapped(f"{split}/indices", (values,), (NUMBERS,))
    data = file.mapped(f"{split}/data", (values,), (VALUES,))
    label_columns = file.mapped(f"{split}/label_indices", (labels,), (NUMBERS,))
    for name, offsets, total in (("indptr", indptr, values), ("label_indptr", label_indptr, labels)):
        if offsets[0] != 0 or offsets[-1] != total or (np.diff(offsets) < 0).any():
            raise file.error(f"has {split}/{name} that does not rise from 0 to {total:,}; prepare it again")
    # Of features the first ones: all would be a full read.
    for name, numbers, most in (("label_indices", label_columns, outputs), ("indices", columns[:_LOOKED_AT], features)):
        if numbers.min() < 0 or numbers.max() >= most:
            raise file.error(f"has numbers in {split}/{name} that are not from 0 to {most - 1}; prepare it again")
    if not np.isfinite(data[:_LOOKED_AT]).all():
        raise file.error(f"has values in {split}/data that are not finite; prepare it again")
    guards = file.guard(f"{split}/indices", columns), file.guard(f"{split}/data", data)
    return SparseSplit(Ragged(indptr, (columns, data)), Ragged(label_indptr, (label_columns,)), guards)
