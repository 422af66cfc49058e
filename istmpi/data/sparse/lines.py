"""Reads lines of sparse rows, ``label,label feature:value feature:value``, into memory."""

import re
from array import array
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from istmpi.data.archive import Stream
from istmpi.data.sparse.closeness import Closeness
from istmpi.data.sparse.split import Ragged, offsets_of
from istmpi.errors import DataError
from istmpi.foreign import number, one_line, whole_number

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

    @property
    def says(self) -> str:
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
    header, first_line, end, filled, inside, repeated = None, 0, 0, 0, 0, 0
    closeness, commented, queries = Closeness(), None, 0
    label_counts, labels, counts, columns, values = (array(code) for code in "iiiif")
    for end, line in enumerate(stream.lines(), 1):
        where = f"{stream.name}, line {end}"
        line, _, comment = line.partition(b"#")
        if b"qid:" in line:
            line, count = _QUERY.subn(b"", line)
            queries += count
        if not first_line:
            based = _BASED.search(comment)
            if based:
                commented = int(based[1] == b"one")
            if not line.strip():
                continue
            header = _header_of(where, line)
            first_line = end + bool(header)
            if header:
                limits = Limits(header.features, header.labels)
                continue
        row_labels, row_columns, row_values = _parsed(where, line, limits)
        once = dict.fromkeys(row_labels)
        repeated += len(row_labels) - len(once)
        for numbers, more in ((labels, once), (columns, row_columns), (values, row_values)):
            numbers.extend(more)
        closeness.add(row_columns, row_values)
        label_counts.append(len(once))
        counts.append(len(row_columns))
        if once or row_columns:
            filled, inside = filled + 1, len(counts) - filled - 1
            if header and filled > header.rows:
                raise DataError(f"{where}: {header.says}, but there are more. Correct the header.")
    if not filled:
        raise DataError(f"{stream.name}, line {end + 1}: the file is empty. Give a file with rows.")
    blank, missing = len(counts) - filled, header.rows - filled if header else 0
    if missing and not inside <= missing <= blank:
        raise DataError(
            f"{stream.name}, line {end}: {header.says}, but the file ends after {filled:,}, and "
            f"{blank:,} "
            "blank lines. Correct the header, or copy the file again."
        )
    lengths, label_lengths = (
        np.frombuffer(numbers, np.int32) for numbers in (counts, label_counts)
    )
    kept = np.arange(len(counts)) < header.rows if missing else lengths + label_lengths > 0
    arrays = np.frombuffer(columns, np.int32), np.frombuffer(values, np.float32)
    features = Ragged(offsets_of(lengths[kept]), arrays)
    of_labels = Ragged(offsets_of(label_lengths[kept]), (np.frombuffer(labels, np.int32),))
    return Rows(
        stream.name,
        header,
        features,
        of_labels,
        first_line,
        repeated,
        blank,
        missing,
        closeness.too_close(),
        commented,
        queries,
    )


def _header_of(where: str, line: bytes) -> Header | None:
    words = line.split()
    if any(b":" in word for word in words):
        return None
    if len(words) != 3 or not all(word.isdigit() for word in words):
        raise DataError(
            f"{where}: {_shown(line)} is not a header (ROWS FEATURES LABELS) or a row (LABEL "
            "FEATURE:VALUE). "
            "Add the header."
        )
    header = Header(*(int(word[:19]) for word in words))  # int() refuses very many digits
    if min(header) < 1 or max(header.features, header.labels) >= MOST or header.rows >= 2**62:
        raise DataError(
            f"{where}: its header is {one_line(line.decode(errors='replace').strip())}; each must "
            "be at least "
            "1, features and labels below 2^31. Correct it."
        )
    return header


def _parsed(where: str, line: bytes, limits: Limits) -> tuple[list[int], list[int], list[float]]:
    words, named = line.split(), []
    if words and not line[:1].isspace() and b":" not in words[0]:
        named = [_DECIMALS.sub(rb"\1", label) for label in words.pop(0).split(b",")]
    pairs = [word.partition(b":") for word in words]
    with suppress(ValueError):
        labels, columns = [*map(int, named)], [int(column) for column, _, _ in pairs]
        values = [float(value) for _, _, value in pairs]
        first, last = min(columns, default=limits.first), max(columns, default=0)
        inside = limits.first <= first and last < limits.first + limits.features
        inside = inside and min(labels, default=0) >= 0 and max(labels, default=0) < limits.labels
        if inside and all(abs(value) <= LARGEST for value in values) and b"_" not in line:
            return labels, columns, values
    for word in named:
        _require_number(where, word, "label", limits.labels)
    for word, (column, colon, value) in zip(words, pairs):
        if not colon:
            raise DataError(
                f"{where}: {_shown(word)} has no colon; a feature is NUMBER:VALUE. Correct the "
                "line."
            )
        _require_number(where, column, "feature", limits.features, limits.first)
        try:
            finite = abs(number(value.decode())) <= LARGEST
        except ValueError:
            raise DataError(
                f"{where}: {_shown(word)} has no number after its colon. Correct the line."
            ) from None
        if not finite:
            raise DataError(
                f"{where}: {_shown(word)} must have a finite value of at most 3.4e38 (float32). "
                "Correct the line."
            )
    raise AssertionError(line)


def _require_number(where: str, word: bytes, what: str, total: int, first: int = 0) -> None:
    try:
        index = whole_number(word.decode())
    except ValueError:
        raise DataError(
            f"{where}: {_shown(word)} is not a {what} number, a whole number from 0. Correct the "
            "line."
        ) from None
    if index == -1 and what == "label":
        raise DataError(
            f"{where}: label -1; labels are numbers from 0. Write 0 instead of -1 for classes -1 "
            "and +1."
        )
    if not first <= index < first + total:
        constraint = (
            f"there are {total:,}, numbered from {first}"
            if total < MOST
            else "the range is 0 to 2^31"
        )
        raise DataError(
            f"{where}: {what} {index} is out of range: {constraint}. Correct the line, or the "
            "header."
        )


def _shown(word: bytes) -> str:
    return repr(one_line(word[:40].decode(errors="replace").strip()))
