"""Tables of numbers as delimited text, one example a line."""

import csv
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.class_list import class_list
from istmpi.data.dataset import SPLITS
from istmpi.data.decoder import Decoder, Notes, first_of, split_of
from istmpi.data.dense.split import material_of, rows_per_block
from istmpi.data.holdout import ONE_IN_FIVE, with_test
from istmpi.data.labels import ONE_CLASS, read_labels
from istmpi.data.writer import Material
from istmpi.errors import ConfigError, DataError, did_you_mean
from istmpi.foreign import (
    in_ascii_digits,
    is_number,
    is_whole_number,
    number,
    one_line,
    printable,
    reading,
)
from istmpi.tasks import CLASSIFICATION, REGRESSION

ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
FEW = 100
"""Whole-number labels with at most this many different values are classes."""


@dataclass
class Table:
    """A table in memory: ``names`` is None without a header; ``labels`` is empty if no column holds
    labels."""

    name: str
    delimiter: str
    header: list[str] | None
    names: list[str] | None
    name_of_label: str | None
    x: np.ndarray
    labels: list[str]


def read(
    archive: Archive,
    decoder: Decoder,
    *,
    label: str | None = None,
    task: str | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    classes: str | None = None,
) -> Material:
    """Read columns as float32 features, each normalised by its own mean and deviation.

    ``label`` is the name or number of the labels' column, by default the last. ``classes``: names
    with commas, see `class_list`.
    """
    listed = class_list(classes)
    if delimiter is not None:
        character_of(delimiter)
    notes, source = decoder.notes, str(archive.path)
    tables: dict[str, Table] = {}
    for split, name in _find(archive).items():
        column = "-1" if label is None else label
        tables[split] = table = read_table(archive, name, column, notes, delimiter, header)
        delimiter, header = table.delimiter, table.header is not None
    first, *others = tables.values()
    for other in others:
        if other.x.shape[1] != first.x.shape[1] or other.header != first.header:
            raise DataError(
                f"{other.name} has other columns than {first.name}; give tables with the same "
                "columns."
            )
    if label is None:
        named = f", {first.name_of_label}" if first.name_of_label else ""
        notes.assume(f"the labels are in the last column{named}", "--label")
    notes.reading |= {
        "delimiter": delimiter,
        "header": header,
        "columns": first.names,
        "label": first.name_of_label,
    }
    raw = {split: table.labels for split, table in tables.items()}
    cure = _cure_of_one_class(first, raw, label is None)
    typed = _typed(raw, task, notes, source)
    task, names, labels = read_labels(typed, task, source, classes=listed, cure=cure)
    if task == REGRESSION and label is None and LABEL_NAMES & {*(first.names or ())}:
        if all(len(np.unique(y)) == 1 for y in labels.values()):
            raise DataError(f"{source}: all labels are equal. {cure}")
    splits = {split: (table.x, labels[split]) for split, table in tables.items()}
    if "" in splits:
        of_class = " of each class" * (task == CLASSIFICATION)
        decoder.split = f"{ONE_IN_FIVE}{of_class} (train.csv and test.csv decide otherwise)"
    splits = with_test(splits, source, by_class=names is not None)
    named = (first.name_of_label,) if task == REGRESSION and first.name_of_label else None
    dtype, groups = np.dtype(np.float32), first.x.shape[1]
    return material_of(archive.source, task, splits, names, dtype, groups, output_names=named)


def _cure_of_one_class(table: Table, raw: dict[str, list[str]], guessed: bool) -> str:
    """Return the cure for labels that are all equal. ``guessed``: True if the last column was taken
    for the labels."""
    texts = sorted({text for labels in raw.values() for text in labels})
    named = [name for name in table.names or () if name.lower() in LABEL_NAMES]
    if named and guessed:
        return f"The labels may be in the column {named[0]}: --label {named[0]}."
    if len(texts) > 1:
        return f"The labels {first_of(texts, _NAMED)} are one number. Write codes as names, such as c{texts[0]}."
    return ONE_CLASS


def _find(archive: Archive) -> dict[str, str]:
    names = [name for name in archive.names if name.lower().endswith(ENDINGS)]
    by_split: dict[str, list[str]] = {}
    for name in names:
        by_split.setdefault(split_of(name.rpartition("/")[2].partition(".")[0]), []).append(name)
    if len(names) == 1:
        return {"": names[0]}
    if not {"train", "test"} <= by_split.keys():
        held = ", ".join(names[:5]) or "none"
        raise DataError(
            f"{archive.path} needs one table, or train.csv and test.csv, but has: {held}."
        )
    chosen = {split: by_split[split] for split in SPLITS if split in by_split}
    for split, files in chosen.items():
        if len(files) > 1:
            raise DataError(
                f"{archive.path}: {' and '.join(files[:2])} are both for {split}. Keep one."
            )
    return {split: files[0] for split, files in chosen.items()}


def _typed(
    raw: dict[str, list[str]], task: str | None, notes: Notes, source: str
) -> dict[str, np.ndarray]:
    texts = Counter(text for labels in raw.values() for text in labels)
    names = [text for text in texts if not is_number(text)]
    dtype, reason = np.float64, f"{texts.total():,} labels have {len(texts):,} different"
    if names:
        if task != CLASSIFICATION and all(is_number(text.replace(",", ".", 1)) for text in texts):
            raise DataError(
                f"{source}: the label {one_line(names[0])!r} has a decimal comma. Use a decimal "
                "point, or "
                "give --task classification."
            )
        count, dtype = sum(texts[name] for name in names), np.str_
        reason = (
            f"{count:,} of {texts.total():,} labels are not numbers (such as "
            f"{one_line(names[0])!r}), so all are "
            "classes"
        )
    elif all(map(is_whole_number, texts)):
        by_number: dict[int, list[str]] = {}
        for text in texts:
            by_number.setdefault(int(text), []).append(text)
        joined = [spellings for spellings in by_number.values() if len(spellings) > 1]
        if joined:
            notes.assume(f"the labels {first_of(sorted(joined[0]), _NAMED)} are one number")
        few = len({int(text) for text in texts}) <= FEW
        reason += f" whole numbers, {'at most' if few else 'more than'} {FEW}, so they are "
        reason += "classes" if few else "numbers to predict"
        if task == CLASSIFICATION or (task is None and few):
            dtype = (
                np.int64 if max((abs(int(text)) for text in texts), default=0) < 2**63 else np.str_
            )
        else:
            for text in texts:
                require_exact(text, f"{source}: the label")
    else:
        whole = (
            "whole, with decimal points"
            if all(number(text).is_integer() for text in texts)
            else "not all whole"
        )
        reason += f" numbers, {whole}, so they are numbers to predict"
        train = {*raw.get("train", ())}
        if task is None and train and all(map(is_whole_number, train)) and len(train) <= FEW:
            odd = next(text for text in texts if not is_whole_number(text))
            raise DataError(
                f"{source}: train labels are whole numbers, such as {min(train)}, but the label "
                f"{odd} of another "
                "split has a decimal point. Write labels alike, or give --task classification or "
                "regression."
            )
    if task is None and len(names) < len(texts):
        notes.assume(reason, "--task")
    return {split: np.array(labels).astype(dtype) for split, labels in raw.items()}


_NAMED = 5
EXACT = 2**53
LABEL_NAMES = {"label", "labels", "target", "class"}
_INDEX = re.compile(r"|Unnamed: \d+")


def is_index(name: str) -> bool:
    """Return True for the name in a header of a column that pandas writes for a table's index."""
    return bool(_INDEX.fullmatch(name))


_Row = tuple[int, list[str]]


def read_table(
    archive: Archive,
    name: str,
    label: str | None,
    notes: Notes,
    delimiter: str | None = None,
    header: bool | None = None,
    passed_over: str | None = None,
) -> Table:
    """Return the table in a file; ``label`` is the name or number of the labels' column, None if
    there is none.

    ``delimiter`` is a character or ``tab``. The first line decides if ``delimiter`` or ``header``
    is None. The column ``passed_over`` is left out. Raises DataError.
    """
    given = header
    with archive.stream(name) as stream:
        line = next((line for line in stream.lines() if line.strip()), b"").decode(
            "utf-8", errors="replace"
        )
    delimiter = delimiter or _guess(name, line, notes)
    with closing(_rows(archive, name, delimiter)) as rows:
        opening = [*islice(rows, 1)]
        first = [printable(field.strip()) for _, row in opening for field in row]
        if label is not None and len(first) < 2:
            raise DataError(
                f"{name}: the first line has {len(first)} column{'s' * (len(first) != 1)}; it "
                "needs features "
                "and a label. Set --delimiter."
            )
        place = None if label is None else _place_of(name, first, label.strip())
        others = {
            place,
            first.index(passed_over) if header is not False and passed_over in first else None,
        }
        columns = [column for column in range(len(first)) if column not in others]
        if header is None:
            header = _is_header(name, [first[column] for column in columns])
        if header:
            index = [column for column in columns if is_index(first[column])]
            columns = [column for column in columns if column not in index]
            if index:
                what = "a column without a name" if not first[index[0]] else first[index[0]]
                notes.leave_out(f"{name}: {what}, as pandas writes an index")
            if not columns:
                raise DataError(
                    f"{name} has no column with a name. Name the features in its first line."
                )
        if given is None:
            what = f"a header: {first_of(first, _NAMED)}" if header else "an example, not a header"
            notes.assume(f"the first line is {what}", "--header")
        x, labels, examples = [np.zeros((0, len(columns)))], [], chain(opening[header:], rows)
        while numbered := list(islice(examples, rows_per_block(max(len(first), 1)))):
            x.append(_numbers(name, numbered, columns, bool(header)))
            for number, row in numbered if label is not None else ():
                labels.append(row[place].strip())
                if not labels[-1]:
                    raise DataError(
                        f"{name}, line {number} has no label. Add it or remove the line; a "
                        "delimiter at the "
                        "end of a line starts another column."
                    )
    if given is None and opening and not header:
        odd_label = bool(labels) and not is_number(labels[0]) and labels.count(labels[0]) == 1
        if len(labels) > 1 and is_number(labels[0]) and not any(map(is_number, labels[1:])):
            odd_label = True  # a number above names
        named = [field for field in first if field]
        if odd_label or (len(named) > 2 and named == [str(number) for number in range(len(named))]):
            line = first_of(first, _NAMED)
            raise DataError(f"{name}, line 1: {line} may be a header. Give --header yes or no.")
    names = [first[column] for column in columns] if header else None
    of_label = first[place] or None if header and label is not None else None
    return Table(
        name, delimiter, first if header else None, names, of_label, np.concatenate(x), labels
    )


def _guess(name: str, line: str, notes: Notes) -> str:
    there = [
        word for word, character in ((",", ","), (";", ";"), ("tab", "\t")) if character in line
    ]
    if len(there) > 1:
        raise DataError(
            f"{name}: its first line has {' and '.join(there)}; which is the delimiter is unclear "
            "(a decimal "
            "comma is not). Set --delimiter."
        )
    delimiter = there[0] if there else ","
    notes.assume(f"the columns are separated by {delimiter!r}", "--delimiter")
    return delimiter


def _is_header(name: str, features: list[str]) -> bool:
    numbers = [is_number(field) for field in features if field]
    if any(numbers) and not all(numbers):
        odd = next(field for field in features if field and not is_number(field))
        raise DataError(
            f"{name}, line 1: {one_line(odd)!r} is not a number, but others are. Give --header yes "
            "if the "
            "line is a header, otherwise fill or drop it."
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
        (line, field)
        for (line, _), row in zip(numbered, features)
        for field in row
        if not is_number(field)
    )
    raise DataError(
        f"{name}, line {line}: {one_line(field)!r} is not a number; features must be numbers with "
        "a decimal "
        "point. Encode, fill or drop "
        f"it{'' if header or line > 1 else '; if the line is a header, give --header yes'}."
    )


def _rows(archive: Archive, name: str, delimiter: str) -> Iterator[_Row]:
    cure, columns = "Write it as plain UTF-8 text.", 0
    with (
        reading(f"{name} is not a table", cure, csv.Error, UnicodeDecodeError),
        archive.stream(name) as stream,
    ):
        text = (line.decode("utf-8") for line in stream.lines())
        reader = csv.reader(
            text, delimiter=character_of(delimiter), skipinitialspace=True, strict=True
        )
        for row in (row for row in reader if any(map(str.strip, row))):
            columns = columns or len(row)
            if len(row) != columns:
                raise DataError(
                    f"{name}, line {reader.line_num}: {len(row)} columns, but line 1 has "
                    f"{columns}. A delimiter at the "
                    "end of a line starts another column."
                )
            yield reader.line_num, row


def _place_of(name: str, first: list[str], label: str) -> int:
    if is_whole_number(label) and -len(first) <= int(label) < len(first):
        return int(label) % len(first)
    if first.count(label) > 1:
        raise DataError(
            f"{name}: several columns are called {label!r}; give the number of one, from 0."
        )
    if label in first:
        return first.index(label)
    if is_whole_number(label):
        raise DataError(
            f"{name} has {len(first)} columns, counted from 0; there is no column {label}."
        )
    raise DataError(f"{name} has no column {label}{did_you_mean(label, first)}")


def require_exact(text: str, where: str) -> None:
    if is_whole_number(text.strip()) and int(text) != int(float(text)):
        raise DataError(
            f"{where}: {one_line(text.strip())} has more digits than a float64 keeps, so close "
            "values would "
            "be equal. Subtract a number from its column, or divide it, first."
        )


def character_of(delimiter: str) -> str:
    character = "\t" if delimiter == "tab" else delimiter
    if len(character) != 1 or character.isalnum() or character in '"\r\n.+- ':
        raise ConfigError(
            f"delimiter {delimiter!r} is invalid; give a character such as ';', or tab."
        )
    return character
