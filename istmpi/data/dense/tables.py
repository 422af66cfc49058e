"""Tables of numbers, one example a row: delimited text, or columns of Parquet and Arrow."""

from __future__ import annotations

import csv
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.class_list import class_list
from istmpi.data.dataset import SPLITS
from istmpi.data.decoder import Decoder, Notes, list_first, recognise_split
from istmpi.data.dense.columnar import ENDINGS as COLUMNAR
from istmpi.data.dense.columnar import is_columnar, read_columnar
from istmpi.data.dense.delimiters import guess_delimiter, to_character
from istmpi.data.dense.encoding import Encoding, leave_out_index, require_unique_names
from istmpi.data.dense.like import TableForm, find_form, order_columns
from istmpi.data.dense.split import build_material, rows_per_block
from istmpi.data.dense.table_labels import (
    EXACT,
    NAMED,
    choose_label_type,
    find_label,
    name_label,
    name_place,
    read_label_column,
    require_different,
    require_exact,
    require_number,
    require_one_column,
    suggest_cure,
)
from istmpi.data.holdout import describe_drawn, ensure_test
from istmpi.data.labels import read_labels
from istmpi.data.writer import Material
from istmpi.errors import DataError
from istmpi.foreign import in_ascii_digits, is_number, one_line, printable, reading
from istmpi.tasks import CLASSIFICATION, REGRESSION

ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", *COLUMNAR)


@dataclass
class Table:
    """A table in memory."""

    name: str
    """The file's name, for messages."""
    delimiter: str
    header: list[str] | None = None
    """The fields of the header; None without one."""
    names: list[str] | None = None
    """The names of the columns of ``x``; None without a header."""
    label_name: str | None = None
    x: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    """``[n, features]`` float64."""
    encoding: Encoding = field(default_factory=Encoding)
    labels: list[str] = field(default_factory=list)
    """Empty if no column holds labels."""

    def name_columns(
        self, header: list[str], columns: list[int], label_place: int | None, notes: Notes
    ) -> list[int]:
        """Return the columns that stay features, and keep their names. Raises DataError."""
        columns = self.encoding.keep(header, columns)
        columns = leave_out_index(self.name, header, columns, notes)
        self.header = header
        self.names = [header[column] for column in columns]
        if label_place is not None:
            self.label_name = header[label_place] or None
        require_unique_names(self.name, self.names, self.label_name)
        return columns

    def read(self, rows: Iterator[Row], columns: list[int], label_place: int | None) -> None:
        """Read ``x`` from ``columns``, and ``labels`` from one more. Raises DataError."""
        blocks = [np.zeros((0, len(columns)))]
        while block := list(islice(rows, rows_per_block(max(len(columns), 1)))):
            blocks.append(self.encoding.read(self, block, columns, self._read_numbers))
            if label_place is not None:
                self.labels += read_label_column(self.name, block, label_place)
        self.x = np.concatenate(blocks)

    def take_order(self, columns: Sequence[str]) -> None:
        """Bring the features into the order of ``columns``. Raises DataError for other columns."""
        self.x = self.x[:, order_columns(self.name, self.names or (), columns)]
        self.names = [*columns]

    def _read_numbers(self, block: Sequence[Row], columns: Sequence[int]) -> np.ndarray:
        return _read_numbers(self.name, block, columns, self.header)


def read(
    archive: Archive,
    decoder: Decoder,
    *,
    label: str | None = None,
    task: str | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    classes: str | None = None,
    like: TableForm | str | None = None,
    **columns: str | None,
) -> Material:
    """Read columns as float32 features, each normalised by its own mean and deviation.

    ``label`` is the name or number of the labels' column, by default the last. ``classes``: names
    with commas, see `class_list`. ``like``: the form that the table is to have, or a prepared file
    of that form. ``columns``: options of `Encoding`.
    """
    notes = decoder.notes
    source = str(archive.path)
    encoding = Encoding.from_options(**columns)
    listed = class_list(classes)
    decided = {**columns, "classes": classes, "task": task, "label": label, "header": header}
    form = find_form(like, decided)
    if form:
        encoding = form.make_encoding()
        label = form.label
        task = form.task
        listed = form.classes
    tables = _read_tables(archive, label, notes, delimiter, header, encoding, form)
    first = next(iter(tables.values()))
    task, names, labels = _read_labels(tables, label, task, listed, notes, source)
    pairs = {split: (table.x, labels[split]) for split, table in tables.items()}
    splits = _split(pairs, form, task, decoder, source)
    splits = encoding.encode_splits(splits, first.names, notes)
    outputs = (first.label_name,) if task == REGRESSION and first.label_name else None
    width = splits["train"][0].shape[1]
    dtype = np.dtype(np.float32)
    return build_material(archive.source, task, splits, names, dtype, width, output_names=outputs)


def _read_labels(
    tables: Mapping[str, Table],
    label: str | None,
    task: str | None,
    listed: tuple[str, ...] | None,
    notes: Notes,
    source: str,
) -> tuple[str, tuple[str, ...] | None, dict[str, np.ndarray]]:
    """Return the task, the names of classes, and the labels of each split; ``listed``: the classes
    that the user named."""
    columns = next(iter(tables.values())).names
    raw = {split: table.labels for split, table in tables.items()}
    cure = suggest_cure(columns, raw, label is None)
    if task == CLASSIFICATION and listed and {*chain(*raw.values())} <= {*listed}:
        # Each is the name of a class, although it may look like a number.
        typed = {split: np.array(texts) for split, texts in raw.items()}
    else:
        typed = choose_label_type(raw, task, notes, source)
    task, names, labels = read_labels(typed, task, source, classes=listed, cure=cure)
    if task == REGRESSION and label is None:
        require_different(labels, columns or (), source, cure)
    return task, names, labels


def _split(pairs: Pairs, form: TableForm | None, task: str, decoder: Decoder, source: str) -> Pairs:
    """Return features and labels of each split; draw the test split of a single table."""
    if form and form.only_tests and "" in pairs:
        decoder.split = "all rows"
        return {"train": pairs[""], "test": pairs[""]}
    if "" in pairs:
        drawn = describe_drawn(by_class=task == CLASSIFICATION)
        decoder.split = f"{drawn} (give train.csv and test.csv for another split)"
    return ensure_test(pairs, source, by_class=task == CLASSIFICATION)


def _note_form(table: Table, label: str | None, notes: Notes) -> None:
    """Note the column of labels if it was guessed, and the conventions for prediction."""
    if label is None:
        named = f", {table.label_name}" if table.label_name else ""
        notes.assume(f"the labels are in the last column{named}", "--label")
    notes.reading |= {
        "delimiter": table.delimiter,
        "header": table.header is not None,
        "columns": table.names,
        "label": table.label_name,
    }


def _read_tables(
    archive: Archive,
    label: str | None,
    notes: Notes,
    delimiter: str | None,
    header: bool | None,
    encoding: Encoding,
    form: TableForm | None,
) -> dict[str, Table]:
    """Return a table for each split; "" for no split. Raises DataError if their columns differ."""
    tables: dict[str, Table] = {}
    if delimiter is not None:
        to_character(delimiter)
    if form:
        header = True
    column = "-1" if label is None else label
    for split, name in _find_tables(archive).items():
        table = read_table(archive, name, column, notes, delimiter, header, encoding=encoding)
        # What the first table shows holds for the others.
        delimiter = table.delimiter
        header = table.header is not None
        if form:
            table.take_order(form.columns)
        tables[split] = table
    first, *others = tables.values()
    for other in others:
        same_header = other.header == first.header or form is not None
        if other.x.shape[1] != first.x.shape[1] or not same_header:
            raise DataError(
                f"{other.name} has other columns than {first.name}; give tables with the same "
                "columns."
            )
    _note_form(first, label, notes)
    return tables


def _find_tables(archive: Archive) -> dict[str, str]:
    """Return the name of each split's table; "" for no split."""
    names = [name for name in archive.names if name.lower().endswith(ENDINGS)]
    by_split: dict[str, list[str]] = {}
    for name in names:
        stem, _, _ = name.rpartition("/")[2].partition(".")
        by_split.setdefault(recognise_split(stem), []).append(name)
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


Row = tuple[int, list[str]]
Pairs = dict[str, tuple[np.ndarray, np.ndarray]]
"""Features and labels by split."""


def read_table(
    archive: Archive,
    name: str,
    label: str | None,
    notes: Notes,
    delimiter: str | None = None,
    header: bool | None = None,
    left_out: str | None = None,
    encoding: Encoding | None = None,
    expected: Sequence[str] | None = None,
) -> Table:
    """Return the table in a file; ``label`` is the name or number of the labels' column, if any.

    ``delimiter`` is a character or ``tab``. The first line decides what is None of ``delimiter``
    and ``header``. The column ``left_out`` of a header is left out. ``expected``: the names that
    the columns of a header must have, in any order. Raises DataError.
    """
    if is_columnar(name):
        header = True
    delimiter = delimiter or guess_delimiter(archive, name, notes)
    with closing(read_rows(archive, name, delimiter)) as rows:
        # The first line decides what the others are, and is read again if it is an example.
        opening = [*islice(rows, 1)]
        first = [printable(field.strip()) for _, row in opening for field in row]
        label_place = find_label(name, first, label)
        columns = _list_features(first, label_place, left_out, header)
        table = Table(name=name, delimiter=delimiter, encoding=encoding or Encoding())
        has_header = _find_header(name, first, columns, header, notes)
        if has_header:
            require_one_column(name, first, label, label_place)
            columns = table.name_columns(first, columns, label_place, notes)
            if expected is not None:
                order_columns(name, table.names or (), expected)
        table.encoding.require_names(name, table.header, name_label(first, label_place))
        table.read(chain(opening[has_header:], rows), columns, label_place)
    if header is None and opening and not has_header:
        _require_no_header(name, first, table.labels)
    return table


def _list_features(
    first: list[str], label_place: int | None, left_out: str | None, header: bool | None
) -> list[int]:
    ignored = {label_place}
    if header is not False and left_out in first:
        ignored.add(first.index(left_out))
    return [column for column in range(len(first)) if column not in ignored]


def _find_header(
    name: str, first: list[str], columns: list[int], header: bool | None, notes: Notes
) -> bool:
    """Return True if the first line is a header; note it if ``header`` does not say so."""
    if header is not None:
        return header
    has_header = _is_header(name, [first[column] for column in columns])
    what = "an example, not a header"
    if has_header:
        what = f"a header: {list_first(first, NAMED)}"
    notes.assume(f"the first line is {what}", "--header")
    return has_header


def _require_no_header(name: str, first: list[str], labels: list[str]) -> None:
    """Raise DataError if the first line, taken for an example, may be a header."""
    suspect = False
    if labels:
        is_first_a_number = is_number(labels[0])
        suspect = not is_first_a_number and labels.count(labels[0]) == 1
        if len(labels) > 1 and is_first_a_number and not any(map(is_number, labels[1:])):
            suspect = True
    # pandas numbers columns without names.
    named = [field for field in first if field]
    if len(named) > 2 and named == [str(number) for number in range(len(named))]:
        suspect = True
    if suspect:
        line = list_first(first, NAMED)
        raise DataError(f"{name}, line 1: {line} may be a header. Give --header yes or no.")


def _is_header(name: str, features: list[str]) -> bool:
    numbers = [is_number(field) for field in features if field]
    # A header with some numbers, or an example with a missing value: only the user knows.
    if any(numbers) and not all(numbers):
        word = next(field for field in features if field and not is_number(field))
        raise DataError(
            f"{name}, line 1: {one_line(word)!r} is not a number, but others are. Give --header "
            "yes if the line is a header, otherwise fill or drop it."
        )
    return bool(features) and not all(numbers)


def _read_numbers(
    name: str, block: Sequence[Row], columns: Sequence[int], header: Sequence[str] | None
) -> np.ndarray:
    """Return the features of a block ``[b, columns]`` float64, or raise DataError."""
    features = [[row[column] for column in columns] for _, row in block]
    # NumPy reads all numbers at once, but accepts more forms than `is_number`.
    if all(map(in_ascii_digits, map("".join, features))):
        values = None
        with suppress(ValueError):
            values = np.array(features, np.float64)
        if values is not None:
            # float64 may have rounded whole numbers of this size.
            for row, column in np.argwhere(np.abs(values) >= EXACT):
                where = name_place(name, block[row][0], columns[column], header)
                require_exact(features[row][column], where)
            return values
    for (line, _), fields in zip(block, features):
        for column, text in zip(columns, fields):
            where = name_place(name, line, column, header)
            require_number(text, where, may_be_header=line == 1 and header is None)
    raise AssertionError(f"{name}: NumPy reads no numbers that Python reads")


def read_rows(archive: Archive, name: str, delimiter: str) -> Generator[Row, None, None]:
    """Yield the number and the fields of each line that is not empty."""
    if is_columnar(name):
        yield from read_columnar(archive, name)
        return
    columns = 0
    with (
        reading(
            f"{name} is not a table",
            "Write it as plain UTF-8 text.",
            csv.Error,
            UnicodeDecodeError,
        ),
        archive.stream(name) as stream,
    ):
        text = (line.decode("utf-8") for line in stream.lines())
        reader = csv.reader(
            text, delimiter=to_character(delimiter), skipinitialspace=True, strict=True
        )
        for row in reader:
            if not any(map(str.strip, row)):
                continue
            columns = columns or len(row)  # as many as in the first line
            if any("\0" in field for field in row):
                raise csv.Error("line contains NUL, as text in UTF-16 does")
            if len(row) != columns:
                raise DataError(
                    f"{name}, line {reader.line_num}: {len(row)} columns, but line 1 has "
                    f"{columns}. A delimiter at the end of a line starts another column."
                )
            yield reader.line_num, row
