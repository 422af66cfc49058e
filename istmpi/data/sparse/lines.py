"""Reads lines of sparse rows, ``label,label feature:value feature:value``, into memory."""

import re
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from istmpi.data.archive import Stream
from istmpi.data.sparse.closeness import Closeness
from istmpi.data.sparse.split import Ragged, add_up_lengths
from istmpi.errors import DataError
from istmpi.foreign import number, one_line, whole_number

COUNTED_FROM = "counted_from"
"""The convention of a data set's ``reading``: the number of the first feature, 0 or 1."""
MOST = 2**31
_QUERY = re.compile(rb"(?<=\s)qid:\d+(?=\s|$)")
_BASED = re.compile(rb"\b(zero|one)-based\b")
"""Text of a comment by scikit-learn's dump_svmlight_file."""
_DECIMALS = re.compile(rb"^([+-]?\d+)\.0*$")
"""A whole number that is written as a fraction, such as 1.0."""
LARGEST = float(np.finfo(np.float32).max)


class Limits(NamedTuple):
    """Limits of a file: the counts of features and labels, and the first feature's number, 0 or
    1."""

    features: int = MOST
    labels: int = MOST
    first: int = 0


class Header(NamedTuple):
    rows: int
    features: int
    labels: int

    def __str__(self) -> str:
        return f"the header states {self.rows:,} rows"


@dataclass
class Rows:
    """The rows of a file; features have the numbers of the file, which count from 0 or 1."""

    name: str
    header: Header | None
    features: Ragged
    labels: Ragged
    first_line: int
    repeated: int
    """The number of labels left out because they repeat a label of the same row."""
    blank: int
    blank_rows: int
    """The number of blank lines that are rows according to the header."""
    close: int | None
    """A feature whose values are too close together for float32; None if there is none."""
    commented: int | None
    """The number of the first feature according to a comment, 0 or 1; None without such a
    comment."""
    queries: int
    """The number of query numbers (``qid:3``) that were left out."""

    def __len__(self) -> int:
        return len(self.features)


def read_lines(stream: Stream, limits: Limits) -> Rows:
    """Return the rows of a file. Raises DataError for a wrong line or header, or no rows.

    ``limits`` apply to a file without a header. Text after a ``#`` is a comment. A blank line is a
    row only if the header's number of rows includes it. Query numbers are left out.
    """
    lines = enumerate(stream.lines(), 1)
    start = _find_start(stream.name, lines)
    header = start.header
    if header:
        limits = Limits(header.features, header.labels)
    rows = _Collected()
    end = start.line
    for end, line in chain(start.rows, lines):
        where = f"{stream.name}, line {end}"
        rows.add(where, line, limits)
        if header and rows.filled > header.rows:
            raise DataError(f"{where}: {header}, but there are more. Correct the header.")
    if not rows.filled:
        raise DataError(f"{stream.name}, line {end + 1}: the file is empty. Give a file with rows.")
    blank_rows = 0
    if header:
        blank_rows = rows.count_blank_rows(header, f"{stream.name}, line {end}")
    features, labels = rows.to_lists(blank_rows)
    return Rows(
        name=stream.name,
        header=header,
        features=features,
        labels=labels,
        first_line=start.line + 1 if header else start.line,
        repeated=rows.repeated,
        blank=rows.blank,
        blank_rows=blank_rows,
        close=rows.closeness.find_close(),
        commented=start.commented,
        queries=rows.queries,
    )


class _Start(NamedTuple):
    """The beginning of a file."""

    line: int
    """The number of the first line that is not blank; of the last line if all are."""
    header: Header | None = None
    rows: tuple[tuple[int, bytes], ...] = ()
    """The number and the text of that line, if it is a row."""
    commented: int | None = None


def _find_start(name: str, lines: Iterator[tuple[int, bytes]]) -> _Start:
    """Read up to the first line that is not blank. Raises DataError for a wrong header."""
    commented: int | None = None
    number = 0
    for number, text in lines:
        line, _, comment = text.partition(b"#")
        # scikit-learn states how it counts in a comment, which no number in the file shows.
        based = _BASED.search(comment)
        if based:
            commented = int(based[1] == b"one")
        line = _QUERY.sub(b"", line)
        if line.strip():
            header = _read_header(f"{name}, line {number}", line)
            rows = () if header else ((number, text),)
            return _Start(line=number, header=header, rows=rows, commented=commented)
    return _Start(line=number, commented=commented)


class _Collected:
    """Rows in compact arrays, which grow; Python's lists would need ten times the memory."""

    def __init__(self) -> None:
        self.closeness = Closeness()
        self.filled = 0
        """The number of rows that are not blank."""
        self.queries = 0
        self.repeated = 0
        self._blank_before = 0
        """The number of blank rows before the last row that is not."""
        self._label_counts = array("i")
        self._labels = array("i")
        self._counts = array("i")
        self._columns = array("i")
        self._values = array("f")

    @property
    def blank(self) -> int:
        return len(self._counts) - self.filled

    def add(self, where: str, text: bytes, limits: Limits) -> None:
        """Add the row in a line, or raise DataError, whose message begins with ``where``."""
        line, _, _ = text.partition(b"#")
        if b"qid:" in line:
            line, count = _QUERY.subn(b"", line)
            self.queries += count
        labels, columns, values = _parse(where, line, limits)
        # A set would change the order of labels, and so the file.
        once = list(dict.fromkeys(labels))
        self.repeated += len(labels) - len(once)
        self._label_counts.append(len(once))
        self._labels.extend(once)
        self._counts.append(len(columns))
        self._columns.extend(columns)
        self._values.extend(values)
        self.closeness.add(columns, values)
        if once or columns:
            # This row is not among the filled ones yet, so it counts as blank.
            self._blank_before = self.blank - 1
            self.filled += 1

    def count_blank_rows(self, header: Header, where: str) -> int:
        """Return the number of blank lines that are rows. Raises DataError if the header states
        more rows than there can be."""
        missing = header.rows - self.filled
        # Blank lines at the end may be the end of the file, those before a row are rows.
        if missing and not self._blank_before <= missing <= self.blank:
            raise DataError(
                f"{where}: {header}, but the file ends after {self.filled:,}, and {self.blank:,} "
                "blank lines. Correct the header, or copy the file again."
            )
        return missing

    def to_lists(self, blank_rows: int) -> tuple[Ragged, Ragged]:
        """Return the features and the labels of all rows, with ``blank_rows`` blank lines."""
        lengths = np.frombuffer(self._counts, np.int32)
        label_lengths = np.frombuffer(self._label_counts, np.int32)
        kept = lengths + label_lengths > 0
        if blank_rows:
            kept = np.arange(len(lengths)) < self.filled + blank_rows
        columns = np.frombuffer(self._columns, np.int32)
        values = np.frombuffer(self._values, np.float32)
        labels = np.frombuffer(self._labels, np.int32)
        return (
            Ragged(add_up_lengths(lengths[kept]), (columns, values)),
            Ragged(add_up_lengths(label_lengths[kept]), (labels,)),
        )


def _read_header(where: str, line: bytes) -> Header | None:
    """Return the header in a line; None for a row. Raises DataError for neither, or a wrong
    header."""
    words = line.split()
    if any(b":" in word for word in words):
        return None
    # Without a feature, the first line can only be a header.
    if len(words) != 3 or not all(word.isdigit() for word in words):
        raise DataError(
            f"{where}: {_show(line)} is not a header (ROWS FEATURES LABELS) or a row (LABEL "
            "FEATURE:VALUE). Add the header."
        )
    # int() refuses very many digits.
    rows, features, labels = (int(word[:19]) for word in words)
    header = Header(rows, features, labels)
    if min(header) < 1 or max(header.features, header.labels) >= MOST or header.rows >= 2**62:
        raise DataError(
            f"{where}: its header is {one_line(line.decode(errors='replace').strip())}; each must "
            "be at least 1, features and labels below 2^31. Correct it."
        )
    return header


def _parse(where: str, line: bytes, limits: Limits) -> tuple[list[int], list[int], list[float]]:
    """Return the labels, columns and values of a row, or raise DataError."""
    words = line.split()
    names: list[bytes] = []
    if words and not line[:1].isspace() and b":" not in words[0]:
        names = [_DECIMALS.sub(rb"\1", label) for label in words.pop(0).split(b",")]
    pairs = [word.partition(b":") for word in words]
    # Almost all lines pass this way, which is fast. The others are read again for a message.
    with suppress(ValueError):
        labels = [int(name) for name in names]
        columns = [int(column) for column, _, _ in pairs]
        values = [float(value) for _, _, value in pairs]
        first = min(columns, default=limits.first)
        last = max(columns, default=0)
        inside = limits.first <= first and last < limits.first + limits.features
        inside = inside and min(labels, default=0) >= 0 and max(labels, default=0) < limits.labels
        # Python also reads numbers such as 1_000, which other programs would refuse.
        if inside and all(abs(value) <= LARGEST for value in values) and b"_" not in line:
            return labels, columns, values
    for name in names:
        _require_number(where, name, "label", limits.labels)
    for word, (column, colon, text) in zip(words, pairs):
        if not colon:
            raise DataError(
                f"{where}: {_show(word)} has no colon; a feature is NUMBER:VALUE. Correct the line."
            )
        _require_number(where, column, "feature", limits.features, limits.first)
        try:
            finite = abs(number(text.decode())) <= LARGEST
        except ValueError:
            raise DataError(
                f"{where}: {_show(word)} has no number after its colon. Correct the line."
            ) from None
        if not finite:
            raise DataError(
                f"{where}: {_show(word)} must have a finite value of at most 3.4e38 (float32). "
                "Correct the line."
            )
    raise AssertionError(line)


def _require_number(where: str, word: bytes, what: str, total: int, first: int = 0) -> None:
    try:
        index = whole_number(word.decode())
    except ValueError:
        raise DataError(
            f"{where}: {_show(word)} is not a {what} number, a whole number from 0. Correct the "
            "line."
        ) from None
    # LIBSVM's two classes are -1 and +1.
    if index == -1 and what == "label":
        raise DataError(
            f"{where}: label -1; labels are numbers from 0. Write 0 instead of -1 for classes -1 "
            "and +1."
        )
    if not first <= index < first + total:
        constraint = "the range is 0 to 2^31"
        if total < MOST:
            constraint = f"there are {total:,}, numbered from {first}"
        raise DataError(
            f"{where}: {what} {index} is out of range: {constraint}. Correct the line, or the "
            "header."
        )


def _show(word: bytes) -> str:
    return repr(one_line(word[:40].decode(errors="replace").strip()))
