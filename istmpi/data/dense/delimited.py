"""A table as delimited text, one example a line."""

import csv
import io
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, pairwise

import numpy as np

from istmpi.data.dense.file import rows_per_block
from istmpi.data.files.archive import Archive
from istmpi.data.files.notes import Notes, first_of
from istmpi.errors import ConfigError, DataError, did_you_mean
from istmpi.foreign import MEGABYTE, in_ascii_digits, is_number, is_whole_number, one_line, printable, reading

LONGEST_LINE = 32 * MEGABYTE
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+([eE][+-]?[0-9]+)?")
_WORDS = {"tab": "\t", "space": " "}
"""Words for delimiters that cannot be seen; ``space`` is any white space."""
_EXCEL = re.compile('"?sep=(.)"?')
"""A first line with which Excel says what the delimiter is."""
_MISSING = ("", "?", "-", "na", "n/a", "null", "none")
"""Fields of examples without a value: they make no header of a line of numbers."""
_SAMPLE = 20
_NAMED = 5
EXACT = 2**53


class Table:
    """A file, read from its start as often as needed; ``label`` is None where it has features alone.

    The content decides what ``delimiter`` (a character, ``tab`` or ``space``) and ``header`` leave open; it is noted.
    """

    def __init__(
        self,
        archive: Archive,
        name: str,
        label: str | None,
        notes: Notes,
        delimiter: str | None = None,
        header: bool | None = None,
    ):
        self._archive, self.name, self._start = archive, name, 0
        self.blank = self.padded = 0
        """Blank lines, and labels with white space before or behind, in the last reading."""
        with self._lines() as lines:
            line = next((line for line in _bounded(lines) if line.strip()), "").rstrip("\r\n")
        self._line = line[: 2**16]
        excel = _EXCEL.fullmatch(line)
        self.excel = excel is not None
        self.delimiter = delimiter or (_word(excel[1]) if excel else self._guess(line, notes))
        with self._lines() as lines:
            first, second, *_ = [*(row for _, row in islice(self._rows(lines), 2)), [], []]
        first = [printable(field.strip()) for field in first]
        self.columns = len(first)
        if label is not None and self.columns < 2:
            raise DataError(
                f"{name}: the first line has {self.columns} column{'s' * (self.columns != 1)}; needed are features and "
                f"a label.{self.hint()}"
            )
        if self.columns > 1 and not any(row[-1].strip() for row in (first, second) if row):
            raise DataError(f"{name}: each line ends with a delimiter, {self.delimiter!r}. Remove it there.")
        self._label = None if label is None else self._find_label(first, label.strip())
        self._columns = [column for column in range(self.columns) if column != self._label]
        if header is None:
            header = bool(first) and self._is_header(first, second)
            what = f"a header: {first_of(first, _NAMED)}" if header else "an example, not a header"
            notes.assume(f"the first line is {what}", "--header")
        self.header = first if header else None
        self._start = 1 if header else 0

    @property
    def names(self) -> list[str] | None:
        """The names of the feature columns; None without a header."""
        return self.header and [self.header[column] for column in self._columns]

    @property
    def name_of_label(self) -> str | None:
        return self.header[self._label] or None if self.header and self._label is not None else None

    @property
    def width(self) -> int:
        return len(self._columns)

    def select(self, names: list[str], label: str | None) -> None:
        """Take the features of these names in this order; there may be a column of labels beside them."""
        expected = {*names}
        columns = [n for n in self._columns if self.header[n] in expected or self.header[n] != label]
        here = [self.header[n] for n in columns]
        if here != names:
            for given in (here, names):
                if twice := [name for name, count in Counter(given).items() if count > 1]:
                    raise DataError(f"{self.name}: several columns are called {twice[0]!r}; give each its own name.")
            lists = {"lacks": expected - {*here}, "has, unknown to the network,": {*here} - expected}
            if wrong := [f"{what} {_listed(sorted(some))}" for what, some in lists.items() if some]:
                raise DataError(
                    f"{self.name}: its header {' and '.join(wrong)}. Give the columns of the training data; --label "
                    f"passes over one, --header no takes a table without a header.{self.hint()}"
                )
            place = dict(zip(here, columns, strict=True))
            columns = [place[name] for name in names]
        self._columns = columns

    def labels(self) -> list[str]:
        labels, self.padded = [], 0
        with self._lines() as lines:
            for line, row in self._examples(lines):
                label = row[self._label].strip()
                if not label:
                    raise DataError(f"{self.name}, line {line}: it has no label. Add it, or remove the line.")
                self.padded += label != row[self._label]
                labels.append(label)
        return labels

    def features(self) -> Iterator[np.ndarray]:
        with self._lines() as lines:
            examples = self._examples(lines)
            while numbered := list(islice(examples, rows_per_block(self.columns))):
                yield self._numbers(numbered)

    def blocks(self, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        start = 0
        for x in self.features():
            yield x, y[start : start + len(x)]
            start += len(x)

    def hint(self) -> str:
        """Return a sentence on what may separate the columns where there seems to be one alone."""
        for character in ",;\t| ":
            if self.columns == 1 and character in self._line:
                word = _word(character)
                return f" If {word} separates its columns, give --delimiter {shlex.quote(word)}."
        return ""

    def _guess(self, line: str, notes: Notes) -> str:
        """Return the delimiter that the first line speaks for, or of several the one that leaves no other in fields."""
        delimiter = max(",;\t", key=line.count)
        for other in "\t;":
            if other in line and any(character in line for character in ",;\t" if character != other):
                with self._lines() as lines:
                    try:
                        rows = [row for _, row in islice(self._rows(lines, _word(other)), _SAMPLE)]
                    except csv.Error:
                        continue
                fields = [field for row in rows[1:] or rows for field in row]
                fit = all(DECIMAL_COMMA.fullmatch(field.strip()) or not {*",;\t"} & {*field} for field in fields)
                widths = {*map(len, rows)}
                if fit and len(widths) == 1 and widths != {1}:
                    delimiter = other
                    break
        notes.assume(f"the columns are separated by {_word(delimiter)!r}", "--delimiter")
        return _word(delimiter)

    def _is_header(self, first: list[str], second: list[str]) -> bool:
        features = [first[column] for column in self._columns]
        features = [field for field in features if field.lower() not in _MISSING]
        if not all(is_number(field) or DECIMAL_COMMA.fullmatch(field) for field in features):
            return True
        if self._label is None or is_number(first[self._label]):
            # Data frames without names write 0, 1, ... instead; of two columns an example may well be 0, 1.
            named = [field for field in first if field]
            return named == [str(n) for n in range(len(named))] and (
                len(named) > 2 or (len(named) == 2 and not all(map(is_whole_number, second)))
            )
        numbers = len(second) == self.columns and is_number(second[self._label])
        rising = all(map(is_number, features)) and all(float(a) < float(b) for a, b in pairwise(features))
        if not numbers and not (rising and (len(features) > 1 or features == ["0"])):
            return False
        # The label must be no class: no example has it, and examples share theirs or have numbers.
        with self._lines() as lines:
            rows = islice(self._rows(lines), 1, None)
            others = Counter(row[self._label].strip() for _, row in rows if len(row) == self.columns)
        return first[self._label] not in others and (numbers or 2 * len(others) <= sum(others.values()))

    def _numbers(self, numbered: list[tuple[int, list[str]]]) -> np.ndarray:
        features = [[row[column] for column in self._columns] for _, row in numbered]
        if all(map(in_ascii_digits, map("".join, features))):
            values = None
            with suppress(ValueError):
                values = np.array(features, np.float64)
            if values is not None:
                for row, column in np.argwhere(np.abs(values) >= EXACT):
                    require_exact(features[row][column], f"{self.name}, line {numbered[row][0]}")
                return values
        line, field = next(
            (line, field) for (line, _), row in zip(numbered, features) for field in row if not is_number(field)
        )
        cure = "Encode or drop it."
        if DECIMAL_COMMA.fullmatch(field.strip()):
            cure = "Write a point for a decimal comma, and nothing between thousands."
        elif not self._start and numbered[0][0] == line:
            cure = "If the line is a header, give --header yes."
        elif not field.strip():
            cure = "Fill it, or remove the line; a delimiter at a line's end begins a column."
        raise DataError(f"{self.name}, line {line}: {one_line(field)!r} is not a number; features must be. {cure}")

    def _examples(self, lines: io.TextIOBase) -> Iterator[tuple[int, list[str]]]:
        for line, row in islice(self._rows(lines), self._start, None):
            if len(row) != self.columns:
                end = "" if row[-1].strip() else " It ends with a delimiter; remove that."
                raise DataError(f"{self.name}, line {line}: {len(row)} columns, not the {self.columns} of line 1.{end}")
            yield line, row

    def _rows(self, lines: io.TextIOBase, delimiter: str | None = None) -> Iterator[tuple[int, list[str]]]:
        """Yield each row that holds something, with the number of its line."""
        delimiter, text = delimiter or self.delimiter, _bounded(lines)
        spaces = delimiter == "space"
        if spaces:
            text = (" ".join(line.split()) for line in text)
        reader = csv.reader(text, delimiter=character_of(delimiter), skipinitialspace=not spaces, strict=True)
        self.blank, excel = 0, self.excel
        for row in reader:
            if not any(map(str.strip, row)):
                self.blank += 1
            elif excel:
                excel = False
            else:
                yield reader.line_num, row

    def _find_label(self, first: list[str], label: str) -> int:
        if is_whole_number(label) and -self.columns <= int(label) < self.columns:
            return int(label) % self.columns
        if first.count(label) > 1:
            raise DataError(f"{self.name}: several columns are called {label!r}; give the number of one, from 0.")
        if label in first:
            return first.index(label)
        if is_whole_number(label):
            raise DataError(f"{self.name} has {self.columns} columns, counted from 0; there is no column {label}.")
        raise DataError(f"{self.name} has no column {label}{did_you_mean(label, first)}")

    @contextmanager
    def _lines(self) -> Iterator[io.TextIOBase]:
        with self._archive.unzipped(self.name) as file:
            cure = "Write it as plain UTF-8 text."
            with (
                reading(f"{self.name} is not a table", cure, csv.Error, UnicodeDecodeError),
                io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as lines,
            ):
                yield lines


def require_exact(text: str, where: str) -> None:
    """Raise DataError for a whole number that float64 rounds."""
    if is_whole_number(text.strip()) and int(text) != int(float(text)):
        raise DataError(
            f"{where}: {one_line(text.strip())} has more digits than a float64 keeps; close ones would be alike. "
            "Subtract a number from its column, or divide it, first."
        )


def character_of(delimiter: str) -> str:
    """Return the character that an option or a file calls the delimiter; ConfigError where it can be none."""
    character = _WORDS.get(delimiter, delimiter)
    if len(character) != 1 or character.isalnum() or character in '"\r\n.+-':
        raise ConfigError(f"delimiter {delimiter!r} cannot be one; give a character such as ';', or tab or space.")
    return character


def _word(character: str) -> str:
    return next((word for word, meaning in _WORDS.items() if meaning == character), character)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_NAMED])) + f" and {len(names) - _NAMED:,} more" * (len(names) > _NAMED)


def _bounded(lines: io.TextIOBase) -> Iterator[str]:
    while line := lines.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise csv.Error(f"a line has more than {LONGEST_LINE // MEGABYTE} million characters")
        yield line
