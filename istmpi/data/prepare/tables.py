"""Tables of numbers as text, one example a line."""

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np

from istmpi.data.holdout import ONE_IN_FIVE, held_out
from istmpi.data.labels import read_labels
from istmpi.data.prepare.archive import Archive
from istmpi.data.prepare.files import Decoder
from istmpi.data.prepare.material import Block, Material, rows_per_block
from istmpi.errors import DataError, did_you_mean
from istmpi.foreign import MEGABYTE, one_line, printable, reading
from istmpi.tasks import CLASSIFICATION, REGRESSION

ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
LONGEST_LINE = 32 * MEGABYTE
FEW = 100
"""Integers with at most this many different values are taken for classes."""


def read(archive: Archive, decoder: Decoder, *, label: str | None = None, task: str | None = None) -> Material:
    """The columns as float32 features, each normalised by its own mean and deviation.

    ``label`` is the name of the label's column, or its number from 0 (from the end: -1, the default). Labels that are
    no numbers, or integers with few different values, are classes; ``task`` decides otherwise. The first line is a
    header if a feature in it is no number, or if its label alone is none. A file named train.csv goes with test.csv
    (and validation.csv); of one file, one in five examples is for testing. Columns are separated by commas, semicolons
    or tabs.
    """
    label = "-1" if label is None else label
    tables = {split: Table(archive, name, label) for split, name in _find(archive).items()}
    first, *others = tables.values()
    for other in others:
        if other.columns != first.columns or other.header != first.header:
            raise DataError(f"{other.name} has not the columns of {first.name}; give tables of one form.")
    raw = {split: table.labels() for split, table in tables.items()}
    task, classes, labels = read_labels(_typed(raw), task, str(archive.path))
    outputs = len(classes) if task == CLASSIFICATION else 1
    if "" in tables:
        decoder.split = ONE_IN_FIVE + " of each class" * (task == CLASSIFICATION)
        test = held_out(len(labels[""]), labels[""] if task == CLASSIFICATION else None)
        counts = {"train": int((~test).sum()), "test": int(test.sum())}
        blocks = _dealt(tables[""].blocks(labels[""]), test)
    else:
        counts = {split: len(y) for split, y in labels.items()}
        blocks = ((split, x, y) for split, table in tables.items() for x, y in table.blocks(labels[split]))
    for split, count in counts.items():
        if count == 0:
            raise DataError(f"{archive.path} has no {split} examples; it needs at least one.")
    features = first.columns - 1
    named = (first.name_of_label,) if task == REGRESSION and first.name_of_label else None
    dtype = np.dtype(np.float32)
    return Material(task, (features,), outputs, classes, dtype, features, counts, blocks, output_names=named)


class Table:
    """One file, read from its start as often as is needed; ``label`` is None where it has features alone."""

    def __init__(self, archive: Archive, name: str, label: str | None):
        self._archive, self.name = archive, name
        with self._lines() as lines:
            start = lines.read(2**16).partition("\n")[0]
        self._delimiter = max(",;\t", key=start.count)
        with self._lines() as lines:
            first, second, *_ = [*(row for _, row in islice(self._rows(lines), 2)), [], []]
        self.columns = len(first)
        if label is not None and self.columns < 2:
            raise DataError(f"{name}: the first line has {self.columns} columns; needed are features and a label.")
        self._label = None if label is None else self._find_label(first, label)
        self.header = first if self._is_header(first, second) else None

    @property
    def name_of_label(self) -> str | None:
        """What the header calls the label's column; None without a header."""
        return printable(self.header[self._label].strip()) if self.header and self._label is not None else None

    def _is_header(self, first: list[str], second: list[str]) -> bool:
        if not all(map(_is_number, self._features(first))):
            return True
        if self._label is None:
            return False
        # Names may be numbers, as data frames write them; then the label's own name gives the header away.
        return not _is_number(first[self._label]) and len(second) == self.columns and _is_number(second[self._label])

    def _features(self, row: list[str]) -> list[str]:
        if self._label is None:
            return row
        return row[: self._label] + row[self._label + 1 :]

    def labels(self) -> list[str]:
        with self._lines() as lines:
            labels = []
            for line, row in self._examples(lines):
                if not row[self._label].strip():
                    raise DataError(f"{self.name}, line {line}: it has no label. Add it, or remove the line.")
                labels.append(row[self._label])
            return labels

    def features(self) -> Iterator[np.ndarray]:
        """x [b, features] float64, block by block."""
        with self._lines() as lines:
            examples = self._examples(lines)
            while numbered := list(islice(examples, rows_per_block(self.columns))):
                yield self._numbers(numbered)

    def blocks(self, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """x [b, features] float64 and the labels given for these rows."""
        start = 0
        for x in self.features():
            yield x, y[start : start + len(x)]
            start += len(x)

    def _numbers(self, numbered: list[tuple[int, list[str]]]) -> np.ndarray:
        features = [self._features(row) for _, row in numbered]
        try:
            return np.array(features, dtype=np.float64)
        except ValueError:
            for (line, _), row in zip(numbered, features):
                for field in row:
                    if not _is_number(field):
                        raise DataError(
                            f"{self.name}, line {line}: {one_line(field)!r} is not a number; features must be. "
                            "Encode or drop it."
                        ) from None
            raise

    def _examples(self, lines: io.TextIOBase) -> Iterator[tuple[int, list[str]]]:
        """Each row with the number of its line, the header left out."""
        for line, row in islice(self._rows(lines), 0 if self.header is None else 1, None):
            if len(row) != self.columns:
                raise DataError(f"{self.name}, line {line}: {len(row)} columns, not the {self.columns} of line 1.")
            yield line, row

    def _rows(self, lines: io.TextIOBase) -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(_bounded(lines), delimiter=self._delimiter, skipinitialspace=True)
        return ((reader.line_num, row) for row in reader if row)

    def _find_label(self, first: list[str], label: str) -> int:
        if not _is_integer(label):
            if label not in first:
                raise DataError(f"{self.name} has no column {label}{did_you_mean(label, first)}")
            return first.index(label)
        if not -self.columns <= int(label) < self.columns:
            raise DataError(f"{self.name} has {self.columns} columns, counted from 0; there is no column {label}.")
        return int(label) % self.columns

    @contextmanager
    def _lines(self) -> Iterator[io.TextIOBase]:
        with self._archive.unzipped(self.name) as file:
            cure = "Write it as plain UTF-8 text."
            with (
                reading(f"{self.name} is not a table", cure, csv.Error, UnicodeDecodeError),
                io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as lines,
            ):
                yield lines


def _bounded(lines: io.TextIOBase) -> Iterator[str]:
    """The lines; csv.Error for one that is too long to be held."""
    while line := lines.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise csv.Error(f"a line has more than {LONGEST_LINE // MEGABYTE} million characters")
        yield line


def _find(archive: Archive) -> dict[str, str]:
    """The file of each split, or the one file under the name ``""``."""
    names = [name for name in archive.names if name.lower().endswith(ENDINGS)]
    stems = {name.rpartition("/")[2].partition(".")[0].lower(): name for name in names}
    if {"train", "test"} <= stems.keys():
        return {split: stems[split] for split in ("train", "test", "validation") if split in stems}
    if len(names) == 1:
        return {"": names[0]}
    held = ", ".join(names[:5]) or "none"
    raise DataError(f"{archive.path}: needed is one table, or train.csv and test.csv; tables found: {held}.")


def _typed(raw: dict[str, list[str]]) -> dict[str, np.ndarray]:
    """Labels as strings, floats or, where they are integers with few different values, integers."""
    different = {label for labels in raw.values() for label in labels}
    if not all(map(_is_number, different)):
        dtype = np.str_
    elif len(different) <= FEW and all(map(_is_integer, different)):
        dtype = np.int64
    else:
        dtype = np.float64
    return {split: np.array(labels).astype(dtype) for split, labels in raw.items()}


def _dealt(blocks: Iterator[tuple[np.ndarray, np.ndarray]], test: np.ndarray) -> Iterator[Block]:
    """Blocks of one table as blocks of two splits."""
    start = 0
    for x, y in blocks:
        mask = test[start : start + len(y)]
        start += len(y)
        yield "train", x[~mask], y[~mask]
        yield "test", x[mask], y[mask]


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _is_integer(field: str) -> bool:
    try:
        return abs(int(field)) < 2**63
    except ValueError:
        return False
