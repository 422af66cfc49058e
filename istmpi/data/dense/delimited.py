"""A table as delimited text, one example a line."""

import csv
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, pairwise

import numpy as np

from istmpi.data.dense.file import rows_per_block
from istmpi.data.files.archive import Archive
from istmpi.data.files.notes import Notes, first_of
from istmpi.errors import ConfigError, DataError, did_you_mean
from istmpi.foreign import in_ascii_digits, is_number, is_whole_number, one_line, printable, reading

_NAMED = 5
EXACT = 2**53


class Table:
    """A file, read from its start as often as needed; ``label`` is None where it has features alone.

    The content decides what ``delimiter`` (a character or ``tab``) and ``header`` leave open; it is noted.
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
        self._archive, self.name, self._start, self.blank = archive, name, 0, 0
        """Its blank lines, in the last reading."""
        with archive.stream(name) as stream:
            line = next((line for line in stream.lines() if line.strip()), b"").decode("utf-8", errors="replace")
        self.delimiter = delimiter or self._guess(line, notes)
        first, second, *_ = [*(row for _, row in islice(self._rows(), 2)), [], []]
        first = [printable(field.strip()) for field in first]
        self.columns = len(first)
        if label is not None and self.columns < 2:
            raise DataError(
                f"{name}: the first line has {self.columns} column{'s' * (self.columns != 1)}; needed are features and "
                f"a label. What separates the columns? Give --delimiter."
            )
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
            if wrong := [f"{what} {first_of([*map(repr, sorted(some))])}" for what, some in lists.items() if some]:
                raise DataError(
                    f"{self.name}: its header {' and '.join(wrong)}. Give the columns of the training data; --label "
                    f"passes over one, --header no takes a table without a header, --delimiter says what is between."
                )
            place = dict(zip(here, columns, strict=True))
            columns = [place[name] for name in names]
        self._columns = columns

    def labels(self) -> list[str]:
        labels = []
        for line, row in self._examples():
            labels.append(row[self._label].strip())
            if not labels[-1]:
                raise DataError(
                    f"{self.name}, line {line}: it has no label. Add it, or remove the line; a delimiter at a line's "
                    f"end begins a column."
                )
        return labels

    def may_be_a_header(self, label: str) -> bool:
        """Return whether the first line could be names that are numbers, with this name of the label."""
        _, row = next(self._rows())
        features = [row[column] for column in self._columns]
        return not is_number(label) and all(float(a) < float(b) for a, b in pairwise(features))

    def features(self) -> Iterator[np.ndarray]:
        examples = self._examples()
        while numbered := list(islice(examples, rows_per_block(self.columns))):
            yield self._numbers(numbered)

    def _guess(self, line: str, notes: Notes) -> str:
        there = [word for word, character in ((",", ","), (";", ";"), ("tab", "\t")) if character in line]
        if len(there) > 1:
            raise DataError(
                f"{self.name}: its first line has {' and '.join(there)}; only one can separate the columns, a decimal "
                f"comma is none. Say which with --delimiter."
            )
        delimiter = there[0] if there else ","
        notes.assume(f"the columns are separated by {delimiter!r}", "--delimiter")
        return delimiter

    def _is_header(self, first: list[str], second: list[str]) -> bool:
        features = [first[column] for column in self._columns]
        numbers = [is_number(field) for field in features if field]
        if not all(numbers):
            if any(numbers):
                odd = next(field for field in features if field and not is_number(field))
                raise DataError(
                    f"{self.name}, line 1: {one_line(odd)!r} is not a number, but others are. If the line is a "
                    f"header, give --header yes, else fill or drop it."
                )
            return True
        if self._label is not None and not is_number(first[self._label]):
            if len(second) == self.columns and is_number(second[self._label]):
                return True
            first = features
        # Data frames without names write 0, 1, ... instead; of two columns an example may well be 0, 1.
        named = [field for field in first if field]
        return named == [str(n) for n in range(len(named))] and (
            len(named) > 2 or (len(named) == 2 and not all(map(is_whole_number, second)))
        )

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
        raise DataError(
            f"{self.name}, line {line}: {one_line(field)!r} is not a number; features must be, with a decimal point. "
            f"Encode, fill or drop it{'' if self._start or line > 1 else '; if the line is a header, --header yes'}."
        )

    def _examples(self) -> Iterator[tuple[int, list[str]]]:
        for line, row in islice(self._rows(), self._start, None):
            if len(row) != self.columns:
                raise DataError(
                    f"{self.name}, line {line}: {len(row)} columns, not the {self.columns} of line 1. A delimiter at "
                    f"a line's end begins a column."
                )
            yield line, row

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield each row that holds something, with the number of its line."""
        cure, self.blank = "Write it as plain UTF-8 text.", 0
        with (
            reading(f"{self.name} is not a table", cure, csv.Error, UnicodeDecodeError),
            self._archive.stream(self.name) as stream,
        ):
            text = (line.decode("utf-8") for line in stream.lines())
            reader = csv.reader(text, delimiter=character_of(self.delimiter), skipinitialspace=True, strict=True)
            for row in reader:
                if any(map(str.strip, row)):
                    yield reader.line_num, row
                else:
                    self.blank += 1

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


def require_exact(text: str, where: str) -> None:
    """Raise DataError for a whole number that float64 rounds."""
    if is_whole_number(text.strip()) and int(text) != int(float(text)):
        raise DataError(
            f"{where}: {one_line(text.strip())} has more digits than a float64 keeps; close ones would be alike. "
            "Subtract a number from its column, or divide it, first."
        )


def character_of(delimiter: str) -> str:
    """Return the character that an option or a file calls the delimiter; ConfigError where it can be none."""
    character = "\t" if delimiter == "tab" else delimiter
    if len(character) != 1 or character.isalnum() or character in '"\r\n.+- ':
        raise ConfigError(f"delimiter {delimiter!r} cannot be one; give a character such as ';', or tab.")
    return character
