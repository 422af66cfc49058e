"""Sparse rows on their way into a prepared file, gone through as often as they are asked for."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from istmpi.data.files.archive import Archive, store
from istmpi.data.files.decoder import Decoder
from istmpi.data.files.npz import load_arrays
from istmpi.data.sparse.lines import LARGEST, MOST, Header, Limits, Lines, Rows, parsed, rows_behind, says
from istmpi.data.sparse.split import Ragged, is_csr, offsets_of
from istmpi.errors import DataError

STEP = 4096


class Csr(ABC):
    """The rows of a file called ``name``."""

    name: str
    header: Header | None = None
    features: int
    labels: int
    """The least numbers of features and of labels that there are."""
    first_line = 1
    repeated = 0
    """Labels that a row had already, which are left out."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def blocks(self) -> Iterator[tuple[Ragged, Ragged]]:
        """Yield the features and the labels of the rows, some at a time, in their order."""


class Stored(Csr):
    """Rows of text, in nameless files on the disk of the target."""

    counted_from = 0

    def __init__(self, name: str, decoder: Decoder):
        self.name, self._folder = name, decoder.folder
        self._files = [decoder.scratch() for _ in Rows._fields]
        self._ends = [0 for _ in Rows._fields]
        self._most_feature = self._most_label = -1
        self.first_line = self.passed_over = 0
        """Numbers of queries (``qid``) are passed over."""
        self.lines = Lines()
        self.blank_rows = 0
        """The number of blank lines that count as rows, to match the header's number of rows."""
        self.least = MOST

    def __len__(self) -> int:
        return self.lines.filled + self.blank_rows

    @property
    def features(self) -> int:
        return self.header.features if self.header else self._most_feature + 1 - self.counted_from

    @property
    def labels(self) -> int:
        return self.header.labels if self.header else self._most_label + 1

    def fill(self, pieces: Iterator[bytes], limits: Limits) -> None:
        """Take in the rows of a file; ``limits`` are those of a file without a header."""
        self.header, blocks = rows_behind(self.name, pieces)
        if self.header:
            limits = Limits(self.header.features, self.header.labels)
        end = 1 + bool(self.header)
        for line, block in blocks:
            self.first_line = self.first_line or line
            rows = parsed(self.name, block, line, limits)
            filled = rows.label_counts + rows.counts > 0
            if self.header and self.lines.filled + filled.sum() > self.header.rows:
                more = line + int(np.flatnonzero(filled)[self.header.rows - self.lines.filled])
                raise DataError(
                    f"{self.name}, line {more}: {says(self.header)}, and here is one more. Correct the header."
                )
            self.lines.add(filled)
            self._add(self._without_repeated(rows))
            self.passed_over += block.count(b" qid:")
            end = line + len(filled)
        if not self.lines.filled:
            raise DataError(f"{self.name}, line {end}: it has no rows, the file is empty. Give one with rows.")
        self.blank_rows = self.lines.blank_rows(self.header, f"{self.name}, line {end - 1}")

    def _add(self, rows: Rows) -> None:
        self.least = min(self.least, int(rows.columns.min(initial=MOST - 1)))
        self._most_feature = max(self._most_feature, int(rows.columns.max(initial=-1)))
        self._most_label = max(self._most_label, int(rows.labels.max(initial=-1)))
        for number, array in enumerate(rows):
            store(self._files[number], array, self._ends[number] * array.itemsize, self._folder)
            self._ends[number] += len(array)

    def _without_repeated(self, rows: Rows) -> Rows:
        row_of = np.repeat(np.arange(len(rows.counts)), rows.label_counts)
        _, first = np.unique(row_of * MOST + rows.labels, return_index=True)
        if len(first) == len(rows.labels):
            return rows
        first.sort()
        self.repeated += len(rows.labels) - len(first)
        counts = np.bincount(row_of[first], minlength=len(rows.counts)).astype(np.int32)
        return rows._replace(label_counts=counts, labels=rows.labels[first])

    def blocks(self) -> Iterator[tuple[Ragged, Ragged]]:
        starts = [0 for _ in Rows._fields]

        def next_of(field: str, count: int) -> np.ndarray:
            number, array = Rows._fields.index(field), np.empty(count, "f4" if field == "values" else np.int32)
            os.preadv(self._files[number], [array], starts[number] * array.itemsize)
            starts[number] += count
            return array

        for start in range(0, self._ends[0], STEP):
            count = min(STEP, self._ends[0] - start)
            label_counts, counts = next_of("label_counts", count), next_of("counts", count)
            kept = label_counts + counts > 0
            if self.blank_rows:
                kept = np.arange(start, start + count) < len(self)
            offsets, label_offsets = offsets_of(counts[kept]), offsets_of(label_counts[kept])
            columns = next_of("columns", int(offsets[-1])) - self.counted_from
            rows = Ragged(offsets, (columns, next_of("values", int(offsets[-1]))))
            yield rows, Ragged(label_offsets, (next_of("labels", int(label_offsets[-1])),))


class OfArrays(Csr):
    """Rows of two .npz of scipy's, mapped where they are not compressed."""

    def __init__(self, archive: Archive, features: str, labels: str):
        self.name = features
        self._rows, (count, self.features) = csr_matrix(archive, features)
        self._labels, (others, self.labels) = csr_matrix(archive, labels)
        if count != others:
            raise DataError(f"{labels} has {others:,} rows, but {features} {count:,}. Give files that belong together.")
        values = self._rows.arrays[1]
        for start in range(0, len(values), 2**22):
            wrong = np.flatnonzero(~(np.abs(values[start : start + 2**22]) <= LARGEST))
            if len(wrong):
                at = start + int(wrong[0])
                row = int(np.searchsorted(self._rows.offsets, at, side="right"))
                raise DataError(f"{features}, row {row}: value {values[at]} must be finite, as a float32 is.")

    def __len__(self) -> int:
        return len(self._rows)

    def blocks(self) -> Iterator[tuple[Ragged, Ragged]]:
        for start in range(0, len(self), STEP):
            rows = np.arange(start, min(start + STEP, len(self)))
            part, labels = self._rows.take(rows), self._labels.take(rows)
            columns, values = part.arrays
            given = Ragged(part.offsets, (columns.astype(np.int32), values.astype(np.float32)))
            ones = labels.arrays[1] != 0
            ends = np.concatenate([[0], np.cumsum(ones)])[labels.offsets]
            yield given, Ragged(ends, (labels.arrays[0][ones].astype(np.int32),))


def csr_matrix(archive: Archive, name: str) -> tuple[Ragged, tuple[int, int]]:
    """Return the lists of columns and values of a matrix of ``scipy.sparse.save_npz``, and its shape."""
    with archive.open(name) as file:
        arrays = load_arrays(file, name)
    wrong = f"{name} is no CSR matrix of scipy.sparse.save_npz"
    if not {"indptr", "indices", "data", "shape", "format"} <= arrays.keys():
        raise DataError(f"{wrong}: it holds {', '.join(arrays) or 'nothing'}. Save a scipy.sparse.csr_matrix.")
    kind = arrays["format"].reshape(-1)[:1].tolist()
    shape = tuple(int(length) for length in arrays["shape"].reshape(-1)[:2])
    indptr, indices, data = (arrays[key] for key in ("indptr", "indices", "data"))
    of_numbers = indices.dtype.kind in "iu" and data.dtype.kind in "fiub"
    if kind not in ([b"csr"], ["csr"]) or len(shape) != 2 or not of_numbers:
        raise DataError(f"{wrong}: its format is {kind}. Convert it with .tocsr().")
    if not is_csr(indptr, indices, data, shape):
        raise DataError(f"{wrong}: indptr, indices and shape do not fit together. Save it again.")
    if len(indices) and (indices.min() < 0 or indices.max() >= shape[1]):
        at = int(np.flatnonzero((indices < 0) | (indices >= shape[1]))[0])
        row = int(np.searchsorted(indptr, at, side="right"))
        raise DataError(
            f"{name}, row {row}: column {indices[at]} is out of range: there are {shape[1]:,}. Save it again."
        )
    return Ragged(indptr.astype(np.int64), (indices, data)), shape
