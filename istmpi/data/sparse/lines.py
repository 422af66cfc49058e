"""Lines of sparse rows, ``label,label feature:value feature:value``, as arrays.

A block of plain lines is taken apart by array operations, by its separators alone. A block with anything else in it
(comments, tabs, ``nan``, mistakes) is read line by line, which either can make sense of it or names the line.
"""

import warnings
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import NamedTuple

import numpy as np

from istmpi.errors import DataError
from istmpi.foreign import MEGABYTE, number, one_line, whole_number

LONGEST_LINE = 32 * MEGABYTE
MOST = 2**31
LARGEST = float(np.finfo(np.float32).max)

_INSIDE, _COMMA, _SPACE, _COLON, _END, _ODD = range(6)
_KIND = np.full(256, _ODD, np.uint8)
_KIND[np.frombuffer(b"0123456789+-.eE", np.uint8)] = _INSIDE
_KIND[np.frombuffer(b", :\n", np.uint8)] = _COMMA, _SPACE, _COLON, _END
_FOLLOWS = np.zeros((_ODD, _ODD), bool)
"""The separators that may follow one, with a number in between."""
_FOLLOWS[[_END, _COMMA], [[_COMMA], [_SPACE], [_END]]] = _FOLLOWS[_SPACE, _COLON] = True
_FOLLOWS[_COLON, [_SPACE, _END]] = True
_BLANK = bytes.maketrans(b",:\n", b"   ")


@dataclass(frozen=True)
class Limits:
    """The numbers of features and of labels that there are, and the number of the first feature."""

    features: int = MOST
    labels: int = MOST
    first: int = 0


class Rows(NamedTuple):
    """Some rows: the numbers of labels and of features of each, and these, one row behind the other."""

    label_counts: np.ndarray
    labels: np.ndarray
    counts: np.ndarray
    columns: np.ndarray
    values: np.ndarray


class Header(NamedTuple):
    """The first line of a file in the Extreme Classification Repository's format."""

    rows: int
    features: int
    labels: int


def blocks_of_lines(name: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the contents of a file in blocks of whole lines, without a byte order mark."""
    rest = b""
    for place, piece in enumerate(pieces):
        piece = piece.removeprefix(BOM_UTF8) if place == 0 else piece
        end = piece.rfind(b"\n") + 1
        if end:
            yield rest + piece[:end]
            rest = b""
        rest += piece[end:]
        if len(rest) > LONGEST_LINE:
            raise DataError(f"{name} has a line of more than {LONGEST_LINE // MEGABYTE} MB. Is it a file of rows?")
    if rest:
        yield rest + b"\n"


def count_of(digits: bytes) -> int:
    """Return the number of ASCII digits; of very many, which int() refuses, another one that is too large as well."""
    return int(digits.lstrip(b"0")[:20] or b"0")


def header_of(name: str, line: bytes, number: int = 1) -> Header | None:
    """Return the header that a first line is; None where it is a row of svmlight."""
    words = line.split()
    if any(b":" in word for word in words):
        return None
    if len(words) != 3 or not all(word.isdigit() for word in words):
        raise DataError(
            f"{name}, line {number}: {_shown(line)} is neither a header, ROWS FEATURES LABELS, nor a row, "
            f"LABEL FEATURE:VALUE. Add the header."
        )
    header = Header(*map(count_of, words))
    if min(header) < 1 or max(header.features, header.labels) >= MOST or header.rows >= 2**62:
        raise DataError(
            f"{name}, line {number}: its header says {one_line(line.decode(errors='replace').strip())}; each must "
            f"be at least 1, features and labels below 2^31. Correct it."
        )
    return header


def rows_behind(name: str, pieces: Iterable[bytes]) -> tuple[Header | None, Iterator[tuple[int, bytes]]]:
    """Return the header of a file, if it has one, and blocks of the lines behind it with the numbers of their first.

    Lines before these that are blank, or comments, do not count.
    """
    blocks, line = blocks_of_lines(name, pieces), 1
    for block in blocks:
        while block:
            first, _, rest = block.partition(b"\n")
            if first.partition(b"#")[0].strip():
                break
            block, line = rest, line + 1
        if block:
            break
    else:
        return None, iter(())
    header = header_of(name, first, line)
    if header:
        block, line = rest, line + 1
    return header, _numbered(chain([block] * bool(block), blocks), line)


def _numbered(blocks: Iterable[bytes], line: int) -> Iterator[tuple[int, bytes]]:
    for block in blocks:
        yield line, block
        line += block.count(b"\n")


@dataclass
class Lines:
    """Counts of lines with a label or a feature, and of blank ones before the last of these, and behind it."""

    filled: int = 0
    blank: int = 0
    trailing: int = 0

    def add(self, filled: np.ndarray) -> None:
        if len(at := np.flatnonzero(filled)):
            self.filled += len(at)
            self.blank += self.trailing + int(at[-1]) + 1 - len(at)
            self.trailing = len(filled) - int(at[-1]) - 1
        else:
            self.trailing += len(filled)

    def blank_rows(self, header: Header | None, where: str) -> int:
        """Return the number of blank lines that the header needs as rows without labels and features."""
        missing = header.rows - self.filled if header else 0
        if missing and not self.blank <= missing <= self.blank + self.trailing:
            raise DataError(
                f"{where}: {says(header)}, but it ends here after {self.filled:,}, and {self.blank + self.trailing:,} "
                f"blank lines. Correct the header, or copy the file again."
            )
        return missing


def says(header: Header) -> str:
    return f"the header says that there are {header.rows:,} rows"


def parsed(name: str, block: bytes, first: int, limits: Limits) -> Rows:
    """Return a row for each line, of which the first has the number ``first``; DataError for a damaged one.

    A blank line is an empty row, nothing behind a ``#`` counts, and svmlight's ``qid`` is passed over.
    """
    return _plain(block, limits) or _odd(name, block, first, limits)


def _plain(block: bytes, limits: Limits) -> Rows | None:
    """Return the rows of well-formed lines, fast; None for others, which `_odd` then reads."""
    for ending in (b"\r\n", b" \n"):
        if ending in block:
            block = block.replace(ending, b"\n")
    kinds = _KIND[np.frombuffer(block, np.uint8)]
    at = np.flatnonzero(kinds)
    separators = kinds[at]
    if (separators == _ODD).any():
        return None
    before = np.concatenate([[_END], separators[:-1]])
    empty = np.diff(at, prepend=-1) == 1
    no_labels = empty & (before == _END) & (separators != _COMMA)
    if not (_FOLLOWS[before, separators] & (~empty | no_labels)).all():
        return None
    line = np.cumsum(separators == _END) - (separators == _END)
    count = int((separators == _END).sum())
    before, behind, line = before[~empty], separators[~empty], line[~empty]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            numbers = np.fromstring(block.translate(_BLANK), np.float64, sep=" ")
        except (DeprecationWarning, ValueError):  # what is no number
            return None
    if len(numbers) != len(behind):
        return None
    is_column, is_value = behind == _COLON, before == _COLON
    is_label = ~(is_column | is_value)
    labels, columns, values = numbers[is_label], numbers[is_column], numbers[is_value]
    for whole, first, total in ((labels, 0, limits.labels), (columns, limits.first, limits.features)):
        if len(whole) and (whole.min() < first or whole.max() >= first + total or (whole != np.floor(whole)).any()):
            return None
    if len(values) and not np.abs(values).max() <= LARGEST:
        return None
    label_counts, counts = (np.bincount(line[chosen], minlength=count) for chosen in (is_label, is_column))
    return _rows(label_counts, labels, counts, columns, values)


def _rows(*arrays: object) -> Rows:
    *numbers, values = arrays
    return Rows(*(np.array(part, np.int64).astype(np.int32) for part in numbers), np.array(values, float).astype("f4"))


def _odd(name: str, block: bytes, first: int, limits: Limits) -> Rows:
    label_counts, labels, counts, columns, values = [], [], [], [], []
    for at, line in enumerate(block.split(b"\n")[:-1], first):
        where = f"{name}, line {at}"
        line = line.partition(b"#")[0]
        words = line.split()
        row_labels = []
        if words and not line[:1].isspace() and b":" not in words[0]:
            row_labels = [_whole(where, word, "label", limits.labels) for word in words.pop(0).split(b",")]
        before = len(columns)
        for word in words:
            column, colon, value = word.partition(b":")
            if not colon:
                raise DataError(f"{where}: {_shown(word)} has no colon; a feature is NUMBER:VALUE. Correct the line.")
            if column == b"qid":
                continue
            columns.append(_whole(where, column, "feature", limits.features, limits.first))
            values.append(_value(where, word, value))
        labels += row_labels
        label_counts.append(len(row_labels))
        counts.append(len(columns) - before)
    return _rows(label_counts, labels, counts, columns, values)


def _whole(where: str, word: bytes, what: str, total: int, first: int = 0) -> int:
    try:
        index = whole_number(word.decode())
    except ValueError:
        raise DataError(
            f"{where}: {_shown(word)} is no number of a {what}, which are whole numbers from 0. Correct the line."
        ) from None
    if index == -1 and what == "label":
        raise DataError(f"{where}: label -1; labels are numbers from 0. Of two classes, -1 and +1, write 0 for -1.")
    if not first <= index < first + total:
        constraint = f"there are {total:,}, numbered from {first}" if total < MOST else "they run from 0 to 2^31"
        raise DataError(f"{where}: {what} {index} is out of range: {constraint}. Correct the line, or the header.")
    return index


def _value(where: str, word: bytes, text: bytes) -> float:
    try:
        value = number(text.decode())
    except ValueError:
        raise DataError(f"{where}: {_shown(word)} has no number behind its colon. Correct the line.") from None
    if not (isfinite(value) and abs(value) <= LARGEST):
        raise DataError(
            f"{where}: {_shown(word)} must have a finite value, as a float32 is up to 3.4e38. Correct the line."
        )
    return value


def _shown(word: bytes) -> str:
    return repr(one_line(word[:40].decode(errors="replace").strip()))
