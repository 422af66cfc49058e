"""Parquet and Arrow files as rows of text, the form in which tables are read."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from typing import TYPE_CHECKING, Any

from istmpi.data.archive import Archive
from istmpi.foreign import reading
from istmpi.optional import optional

if TYPE_CHECKING:
    from types import ModuleType

ENDINGS = (".parquet", ".arrow", ".feather")


def is_columnar(name: str) -> bool:
    return name.lower().endswith(ENDINGS)


def read_columnar(archive: Archive, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields): first (1, names of columns), then each row.

    A null and NaN are empty fields, flags are 1 and 0, and dates and times have the form of ISO
    8601. Raises DataError if pyarrow is missing or the file is damaged.
    """
    arrow = optional("pyarrow", "pyarrow", "Parquet and Arrow tables", extra="tables")
    number = 1
    with (
        reading(f"{name} is not a table", "Write it again.", arrow.ArrowException, OSError),
        archive.open(name) as file,
    ):
        schema, batches = _open(arrow, name, file)
        yield number, list(schema.names)
        for batch in batches:
            for row in zip(*[_read_column(arrow, column) for column in batch.columns]):
                number += 1
                yield number, list(row)


def _open(arrow: ModuleType, name: str, file: Any) -> tuple[Any, Iterator[Any]]:
    """Return a file's schema, and an iterator over its batches of rows."""
    if name.lower().endswith(".parquet"):
        from pyarrow import parquet

        table = parquet.ParquetFile(file)
        return table.schema_arrow, table.iter_batches()
    from pyarrow import ipc

    try:
        reader = ipc.open_file(file)
    except arrow.ArrowInvalid:
        # The other form of Arrow, which has no footer.
        file.seek(0)
        stream = ipc.open_stream(file)
        return stream.schema, iter(stream)
    numbers = range(reader.num_record_batches)
    return reader.schema, (reader.get_batch(number) for number in numbers)


def _read_column(arrow: ModuleType, column: Any) -> list[str]:
    if arrow.types.is_temporal(column.type):
        # Python's own dates and times lose nanoseconds.
        column = column.cast(arrow.string())
    return [_write(value) for value in column.to_pylist()]


def _write(value: Any) -> str:
    """Return the text that a CSV file would have for a value."""
    if value is None or (isinstance(value, float) and isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return repr(value)
    return str(value)
