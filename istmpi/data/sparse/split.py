"""Sparse rows (CSR, docs/formats.md): features that are not zero, and any number of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from istmpi.data.batch import Batch
from istmpi.data.dataset import Split, add_to_checksum, checksum_rows, draw_sample
from istmpi.multilabel import Labels

if TYPE_CHECKING:
    from istmpi.data.hdf5 import Guard, Opened, PreparedFile

SAMPLE_ROWS = 4096
"""The most rows of which a checksum of features is made."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Joined lists of different lengths: list i is ``array[offsets[i] : offsets[i + 1]]`` of each
    array."""

    offsets: np.ndarray
    arrays: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: np.ndarray, guards: Sequence[Guard | None] = ()) -> Ragged:
        """Call each guard with the starts and lengths of the lists ``rows`` [b], and return copies
        of the lists."""
        starts = self.offsets[rows]
        lengths = self.offsets[np.asarray(rows) + 1] - starts
        offsets = add_up_lengths(lengths)
        for guard in guards:
            # An empty list at the end would start behind the last block.
            if guard is not None and offsets[-1]:
                guard(starts[lengths > 0], lengths[lengths > 0])
        # Where a list starts in the arrays, plus the place inside the list.
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Ragged(offsets, tuple(array.view(np.ndarray).take(places) for array in self.arrays))


def add_up_lengths(counts: np.ndarray) -> np.ndarray:
    """Return the starts of joined lists, and the end of the last list, from their lengths."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


@dataclass(eq=False)
class SparseSplit(Split):
    rows: Ragged
    targets: Ragged
    guards: Sequence[Guard | None] = ()
    """Verify rows before they are read; called with the rows' starts and lengths."""

    def __post_init__(self) -> None:
        assert len(self.rows) == len(self.targets), (len(self.rows), len(self.targets))

    def _count(self, lists: Ragged) -> int:
        if self.chosen is None:
            return int(lists.offsets[-1])
        return int(np.diff(lists.offsets)[self.chosen].sum())

    @property
    def _labels(self) -> Ragged:
        return self.targets if self.chosen is None else self.targets.take(self.chosen)

    def batch(self, indices: np.ndarray, key: int | None = None) -> Batch:
        """Return a batch with inputs for `torch.nn.EmbeddingBag`: columns, each row's offset
        ``[b]``, and values."""
        import torch

        chosen = self.find_rows(indices)
        rows = self.rows.take(chosen, self.guards)
        columns, values = rows.arrays
        inputs = (
            torch.from_numpy(columns.astype(np.int64)),
            torch.from_numpy(rows.offsets[:-1]),
            torch.from_numpy(values.astype(np.float32, copy=False)),
        )
        labels = self.targets.take(chosen)
        targets = Labels(
            torch.from_numpy(labels.offsets), torch.from_numpy(labels.arrays[0].astype(np.int64))
        )
        return Batch(inputs, targets, len(rows))

    def __len__(self) -> int:
        return len(self.rows) if self.chosen is None else len(self.chosen)

    @property
    def density(self) -> float:
        return self._count(self.rows) / len(self)

    def estimate_label_odds(self, labels: int) -> float:
        """Return the mean over labels of the probability, in (0, 1), that a row has the label."""
        # Never 0 or 1, for its logit becomes the initial bias of the labels.
        return (self._count(self.targets) + 1) / (len(self) * labels + 2)

    def count_labels(self, labels: int) -> np.ndarray:
        return np.bincount(self._labels.arrays[0], minlength=labels)

    @cached_property
    def labels_checksum(self) -> int:
        labels = self._labels
        checksum = add_to_checksum(0, labels.offsets.astype("<i8"))
        return add_to_checksum(checksum, labels.arrays[0].astype("<i4"))

    @cached_property
    def features_checksum(self) -> int:

        def read(rows: np.ndarray) -> tuple[np.ndarray, ...]:
            part = self.rows.take(self.find_rows(rows))
            columns, values = part.arrays
            return part.offsets.astype("<i8"), columns.astype("<i4"), values.astype("<f4")

        return checksum_rows(draw_sample(len(self), SAMPLE_ROWS), read)


def open_rows(file: PreparedFile) -> Opened:
    return {split: _open_split(file, split) for split in file.splits}, {}


def _open_split(file: PreparedFile, split: str) -> SparseSplit:
    columns, columns_guard = file.map_guarded(f"{split}/indices")
    values, values_guard = file.map_guarded(f"{split}/data")
    row_offsets = file.map(f"{split}/indptr")
    label_offsets = file.map(f"{split}/label_indptr")
    labels = file.map(f"{split}/label_indices")
    return SparseSplit(
        rows=Ragged(row_offsets, (columns, values)),
        targets=Ragged(label_offsets, (labels,)),
        guards=(columns_guard, values_guard),
    )
