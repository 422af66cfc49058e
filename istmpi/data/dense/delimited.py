"""A table as delimited text, one example a line."""

import csv
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from istmpi.data.dense.file import rows_per_block
from istmpi.data.files.archive import Archive
from istmpi.data.files.decoder import Notes, first_of
from istmpi.errors import ConfigError, DataError, did_you_mean
from istmpi.foreign import in_ascii_digits, is_number, is_whole_number, one_line, printable, reading

_NAMED = 5
EXACT = 2**53
_Row = tuple[int, list[str]]
"""The number of a line, and its fields."""


@dataclass
class Table:
    """A table in memory; there are no names without a header, nor labels where it has features alone."""

    name: str
    delimiter: str
    header: list[str] | None
    names: list[str] | None
    name_of_label: str | None
    x: np.ndarray
    """``[n, features]`` float64."""
    labels: list[str]


def read_table(
    archive: Archive,
    name: str,
    label: str | None,
    notes: Notes,
    delimiter: str | None = None,
    header: bool | None = None,
    passed_over: str | None = None,
) -> Table:
    """Return the table of a file; ``label`` is None where it has features alone.

    The content decides what ``delimiter`` (a character or ``tab``) and ``header`` leave open. A column ``passed_over``
    does not count.
    """
    given = header
    with archive.stream(name) as stream:
        line = next((line for line in stream.lines() if line.strip()), b"").decode("utf-8", errors="replace")
    delimiter = delimiter or _guess(name, line, notes)
    with closing(_rows(archive, name, delimiter)) as rows:
        opening = [*islice(rows, 1)]
        first = [printable(field.strip()) for _, row in opening for field in row]
        if label is not None and len(first) < 2:
            raise DataError(
                f"{name}: the first line has {len(first)} column{'s' * (len(first) != 1)}; needed are features and a "
                f"label. What separates the columns? Give --delimiter."
            )
        place = None if label is None else _find(name, first, label.strip())
        others = {place, first.index(passed_over) if header is not False and passed_over in first else None}
        columns = [column for column in range(len(first)) if column not in others]
        if header is None:
            header = _is_header(name, [first[column] for column in columns])
            what = f"a header: {first_of(first, _NAMED)}" if header else "an example, not a header"
            notes.assume(f"the first line is {what}", "--header")
        x, labels = [np.zeros((0, len(columns)))], []
        examples = _examples(name, chain(opening[header:], rows), len(first))
        while numbered := list(islice(examples, rows_per_block(max(len(first), 1)))):
            x.append(_numbers(name, numbered, columns, bool(header)))
            for number, row in numbered if label is not None else ():
                labels.append(row[place].strip())
                if not labels[-1]:
                    raise DataError(
                        f"{name}, line {number}: it has no label. Add it, or remove the line; a delimiter at a line's "
                        f"end begins a column."
                    )
    if given is None and opening and not header:
        odd_label = labels and not is_number(labels[0]) and labels.count(labels[0]) == 1
        named = [field for field in first if field]
        if odd_label or (len(named) > 2 and named == [str(number) for number in range(len(named))]):
            line = first_of(first, _NAMED)
            raise DataError(f"{name}, line 1: {line} may be a header. Give --header yes or no.")
    names = [first[column] for column in columns] if header else None
    of_label = first[place] or None if header and label is not None else None
    return Table(name, delimiter, first if header else None, names, of_label, np.concatenate(x), labels)


def _guess(name: str, line: str, notes: Notes) -> str:
    there = [word for word, character in ((",", ","), (";", ";"), ("tab", "\t")) if character in line]
    if len(there) > 1:
        raise DataError(
            f"{name}: its first line has {' and '.join(there)}; only one can separate the columns, a decimal comma is "
            f"none. Say which with --delimiter."
        )
    delimiter = there[0] if there else ","
    notes.assume(f"the columns are separated by {delimiter!r}", "--delimiter")
    return delimiter


def _is_header(name: str, features: list[str]) -> bool:
    numbers = [is_number(field) for field in features if field]
    if any(numbers) and not all(numbers):
        odd = next(field for field in features if field and not is_number(field))
        raise DataError(
            f"{name}, line 1: {one_line(odd)!r} is not a number, but others are. If the line is a header, give "
            f"--header yes, else fill or drop it."
        )
    return bool(features) and not all(numbers)


def _numbers(name: str, numbered: list[_Row], columns: list[int], header: bool) -> np.ndarray:
    features = [[row[column] for column in columns] for _, row in numbered]
    if all(map(in_ascii_digits, map("".join, features))):
        values = None
        with suppress(ValueError):
            values = np.array(features, np.float64)
        if values is not None:
            for row, column in np.argwhere(np.abs(values) >= EXACT):
                require_exact(features[row][column], f"{name}, line {numbered[row][0]}")
            return values
    line, field = next(
        (line, field) for (line, _), row in zip(numbered, features) for field in row if not is_number(field)
    )
    raise DataError(
        f"{name}, line {line}: {one_line(field)!r} is not a number; features must be, with a decimal point. Encode, "
        f"fill or drop it{'' if header or line > 1 else '; if the line is a header, give --header yes'}."
    )


def _examples(name: str, rows: Iterator[_Row], columns: int) -> Iterator[_Row]:
    for line, row in rows:
        if len(row) != columns:
            raise DataError(
                f"{name}, line {line}: {len(row)} columns, not the {columns} of line 1. A delimiter at a line's end "
                f"begins a column."
            )
        yield line, row


def _rows(archive: Archive, name: str, delimiter: str) -> Iterator[_Row]:
    cure = "Write it as plain UTF-8 text."
    with reading(f"{name} is not a table", cure, csv.Error, UnicodeDecodeError), archive.stream(name) as stream:
        text = (line.decode("utf-8") for line in stream.lines())
        reader = csv.reader(text, delimiter=character_of(delimiter), skipinitialspace=True, strict=True)
        yield from ((reader.line_num, row) for row in reader if any(map(str.strip, row)))


def _find(name: str, first: list[str], label: str) -> int:
    if is_whole_number(label) and -len(first) <= int(label) < len(first):
        return int(label) % len(first)
    if first.count(label) > 1:
        raise DataError(f"{name}: several columns are called {label!r}; give the number of one, from 0.")
    if label in first:
        return first.index(label)
    if is_whole_number(label):
        raise DataError(f"{name} has {len(first)} columns, counted from 0; there is no column {label}.")
    raise DataError(f"{name} has no column {label}{did_you_mean(label, first)}")


def require_exact(text: str, where: str) -> None:
    if is_whole_number(text.strip()) and int(text) != int(float(text)):
        raise DataError(
            f"{where}: {one_line(text.strip())} has more digits than a float64 keeps; close ones would be alike. "
            "Subtract a number from its column, or divide it, first."
        )


def character_of(delimiter: str) -> str:
    character = "\t" if delimiter == "tab" else delimiter
    if len(character) != 1 or character.isalnum() or character in '"\r\n.+- ':
        raise ConfigError(f"delimiter {delimiter!r} cannot be one; give a character such as ';', or tab.")
    return character
