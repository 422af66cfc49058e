"""The form of a table that another one is to have: columns, categories, filled values, classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from istmpi.data.dense.encoding import Encoding
from istmpi.data.hdf5 import open_prepared
from istmpi.errors import ConfigError, DataError
from istmpi.foreign import Fields, one_line
from istmpi.units import list_first


@dataclass(frozen=True)
class TableForm:
    """The form of a table with a header, as `istmpi.data.dense.tables` read it."""

    columns: tuple[str, ...]
    """The columns of features, by name."""
    label: str
    """The column of labels."""
    task: str
    classes: tuple[str, ...] | None
    encoding: Mapping[str, Any]
    """`Encoding.tree`; empty if all columns are plain numbers."""
    only_tests: bool = False
    """True if all rows are for testing."""

    @staticmethod
    def from_file(path: str) -> TableForm:
        """Return the form of a table that was prepared into a file. Raises DataError."""
        data = open_prepared(Path(path))
        form = TableForm.from_reading(data.reading, data.task, data.classes)
        if form is None:
            raise DataError(f"--like {path} is not a prepared table with a header. Give one.")
        return form

    @staticmethod
    def from_reading(
        reading: Mapping[str, Any],
        task: str,
        classes: tuple[str, ...] | None,
        only_tests: bool = False,
    ) -> TableForm | None:
        """Return the form that a `Dataset.reading` describes; None unless it is of a table with a
        header."""
        columns = reading.get("columns")
        label = reading.get("label")
        if not columns or not label:
            return None
        encoding = reading.get("encoding") or {}
        return TableForm(tuple(columns), label, task, classes, encoding, only_tests)

    def make_encoding(self) -> Encoding:
        """Return the encoding of the table, to which no value is added. Raises DataError if it is
        malformed."""
        if not self.encoding:
            return Encoding(trained=True)
        return Encoding.from_tree(
            Fields(self.encoding, "the encoding of the table", "Prepare the data again.")
        )


def find_form(like: TableForm | str | None, options: Mapping[str, Any]) -> TableForm | None:
    """Return the form that the option ``like`` asks for. Raises ConfigError for ``options`` that
    would change it, DataError for a file that is no table."""
    if not isinstance(like, str):
        return like
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"--{name} does not go with --like, whose file decides it.")
    return TableForm.from_file(like)


def order_columns(path: Path | str, names: Sequence[str], expected: Sequence[str]) -> list[int]:
    """Return the places in ``names`` of the ``expected`` columns.

    Raises DataError if the columns are not the same, in any order.
    """
    if len({*expected}) == len(expected) and sorted(names) == sorted(expected):
        return [names.index(name) for name in expected]
    lacking = [one_line(name) for name in expected if name not in names]
    further = [one_line(name) for name in names if name not in expected]
    fault = "has several columns of a name"
    if lacking:
        fault = f"has no {list_first(lacking)}, but the training data do"
    elif further:
        fault = f"has {list_first(further)}, but the training data do not"
    raise DataError(
        f"{path} {fault}. Give the same columns with unique names; --label skips a column, "
        "--header no reads a table without a header, --delimiter sets the delimiter."
    )
