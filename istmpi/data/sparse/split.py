"""Sparse rows (CSR, docs/formats.md): features that are not zero, and any number of labels."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from istmpi.data.batch import Batch
from istmpi.data.dataset import Split, checksum_of, sample_of
from istmpi.multilabel import Labels

if TYPE_CHECKING:
    from istmpi.data.hdf5 import Opened, PreparedFile

SAMPLE_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Ragged:
    """Joined lists of different lengths: list i is ``array[offsets[i] : offsets[i + 1]]`` of each
    array."""

    offsets: np.ndarray
    arrays: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: np.ndarray, guards: tuple[Callable[..., None] | None, ...] = ()) -> Ragged:
        """Call each guard with the starts and lengths of the lists ``rows`` [b], and return copies
        of the lists."""
        starts = self.offsets[rows]
        lengths = self.offsets[np.asarray(rows) + 1] - starts
        offsets = offsets_of(lengths)
        for guard in guards:
            if guard is not None and offsets[-1]:
                guard(starts[lengths > 0], lengths[lengths > 0])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Ragged(offsets, tuple(array.view(np.ndarray).take(places) for array in self.arrays))


def offsets_of(counts: np.ndarray) -> np.ndarray:
    """Return the starts of joined lists, and the end of the last list, from their lengths."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


@dataclass(eq=False)
class SparseSplit(Split):
    rows: Ragged
    targets: Ragged
    guards: tuple[Callable[..., None] | None, ...] = ()
    """Verify rows before they are read; called with the rows' starts and lengths."""
    chosen: np.ndarray | None = None

    def __post_init__(self) -> None:
        assert len(self.rows) == len(self.targets), (len(self.rows), len(self.targets))

    def _count(self, lists: Ragged) -> int:
        return int(
            lists.offsets[-1] if self.chosen is None else np.diff(lists.offsets)[self.chosen].sum()
        )

    @property
    def _labels(self) -> Ragged:
        return self.targets if self.chosen is None else self.targets.take(self.chosen)

    def batch(self, indices: np.ndarray, key: int | None = None) -> Batch:
        """Return a batch with inputs for `torch.nn.EmbeddingBag`: columns, each row's offset
        ``[b]``, and values."""
        import torch

        places = self.places(indices)
        rows, labels = self.rows.take(places, self.guards), self.targets.take(places)
        columns, values = rows.arrays
        inputs = columns.astype(np.int64), rows.offsets[:-1], values.astype(np.float32, copy=False)
        targets = Labels(
            torch.from_numpy(labels.offsets), torch.from_numpy(labels.arrays[0].astype(np.int64))
        )
        return Batch(tuple(map(torch.from_numpy, inputs)), targets, len(rows))

    def __len__(self) -> int:
        return len(self.rows) if self.chosen is None else len(self.chosen)

    @property
    def density(self) -> float:
        return self._count(self.rows) / len(self)

    def odds_of_a_label(self, labels: int) -> float:
        """Return the mean over labels of the probability, in (0, 1), that a row has the label."""
        return (self._count(self.targets) + 1) / (len(self) * labels + 2)

    def label_counts(self, labels: int) -> np.ndarray:
        return np.bincount(self._labels.arrays[0], minlength=labels)

    @cached_property
    def labels_checksum(self) -> int:
        labels = self._labels
        checksum = zlib.crc32(np.ascontiguousarray(labels.offsets, "<i8"))
        return zlib.crc32(np.ascontiguousarray(labels.arrays[0], "<i4"), checksum)

    @cached_property
    def features_checksum(self) -> int:

        def read(rows: np.ndarray) -> tuple[np.ndarray, ...]:
            part = self.rows.take(self.places(rows))
            return (
                part.offsets.astype("<i8"),
                part.arrays[0].astype("<i4"),
                part.arrays[1].astype("<f4"),
            )

        return checksum_of(sample_of(len(self), SAMPLE_ROWS), read)


def open_rows(file: PreparedFile) -> Opened:
    return {split: _open(file, split) for split in file.splits}, {}


def _open(file: PreparedFile, split: str) -> SparseSplit:
    (columns, *guards), (values, *others) = (
        file.guarded(f"{split}/{name}") for name in ("indices", "data")
    )
    of_rows, of_labels, labels = (
        file.mapped(f"{split}/{name}") for name in ("indptr", "label_indptr", "label_indices")
    )
    return SparseSplit(
        Ragged(of_rows, (columns, values)), Ragged(of_labels, (labels,)), (*guards, *others)
    )
