"""Reads examples to predict; the code that prepares training data computes their features."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.data import KINDS, OTHER
from istmpi.data.archive import Archive
from istmpi.data.callable.source import is_function
from istmpi.data.dataset import Dataset, other_reading, require_finite, same_form
from istmpi.data.decoder import Block, Request
from istmpi.data.dense import tables
from istmpi.data.dense.arrays import array_names, convention_of, load_arrays, with_test_drawn
from istmpi.data.dense.split import rows_per_block
from istmpi.data.dense.tables import read_table
from istmpi.data.hdf5 import open_prepared
from istmpi.data.sources import open_dataset
from istmpi.data.writer import SUFFIXES
from istmpi.errors import DataError, kind_of
from istmpi.foreign import Fields

ARRAYS = (".npz", ".npy")


def read_inputs(source: str, kind: str, shape: tuple[int, ...], **options: Any) -> Iterator[Block]:
    """Yield the examples of ``source`` in blocks, for a network trained on data of this ``kind``
    and ``shape``.

    ``options`` are those of `Request`. Raises DataError.
    """
    path, request, trained_on, count = (
        Path(source),
        Request(shape, **options),
        KINDS.get(kind, OTHER),
        0,
    )
    name, unused = path.name.lower(), {"resize"} if request.resize else set()
    unused |= {
        option
        for option in ("label", "header", "delimiter")
        if getattr(request, option) is not None
    }
    if source == "digits" or is_function(source):
        blocks = _of_dataset(open_dataset(source, test=request.test), source, request)
    elif not (path.is_file() or path.is_dir()):
        what = f"is {kind_of(path)}" if path.exists() else "does not exist"
        raise DataError(f"{path} {what}. Give a file or a folder to predict.")
    elif name.endswith(SUFFIXES):
        data = open_prepared(path)
        if differences := other_reading(data.reading, request.reading):
            raise DataError(
                f"{path}: {differences} in the network's training data. Prepare it the same way."
            )
        blocks = _of_dataset(data, source, request)
    elif trained_on.examples and (
        name.endswith(trained_on.endings) or not name.endswith((*ARRAYS, *tables.ENDINGS))
    ):
        blocks = trained_on.examples(path, request)
        unused -= {"resize"} if len(shape) == 3 else set()
    elif name.endswith(ARRAYS):
        blocks = _of_array(path, request, trained_on.reading)
    elif name.endswith(tables.ENDINGS):
        blocks = _of_table(path, request)
        unused &= {"resize"}
    else:
        takes = " x ".join(map(str, shape))
        raise DataError(
            f"{path}: this network takes {takes} numbers; give a .csv, .npz, .npy or a prepared .h5."
        )
    if unused:
        raise DataError(f"--{min(unused)} does not go with {source}. Leave it out.")
    for names, x, true in blocks:
        require_finite(x, "input example", source, count)
        count += len(x)
        yield (range(count - len(x), count) if names is None else names), x, true
    if count == 0:
        raise DataError(f"{source} has no examples that can be read.")


def _of_dataset(data: Dataset, source: str, request: Request) -> Iterator[Block]:
    _require_form(source, data.shape, request.shape)
    data.require_split(request.split, source)
    rows = data.normalised_by(None).reshaped((data.features,)).splits[request.split]
    labels = data.classes and rows.labels()
    for start in range(0, len(rows), step := rows_per_block(data.features)):
        part = np.arange(start, min(start + step, len(rows)))
        x = rows.batch(part).inputs[0].numpy()
        true = data.classes and [data.classes[label] for label in labels[part]]
        yield None, x if data.offset is None else x + data.offset, true


def _of_array(path: Path, request: Request, reading: Mapping[str, Any]) -> Iterator[Block]:
    shape, reading = request.shape, {**reading, **request.reading}
    with path.open("rb") as file:
        arrays = load_arrays(file, str(path))
    if "x" not in map(str.lower, arrays):
        arrays = with_test_drawn(arrays, str(path), request.test)
    by_name = {name.lower(): array for name, array in arrays.items()}
    pairs = [("x", "y"), *array_names(request.split)]
    x, y = next(((by_name[x], by_name.get(y)) for x, y in pairs if x in by_name), (None, None))
    if x is None:
        if len(arrays) != 1:
            raise DataError(
                f"{path} holds {', '.join(arrays) or 'nothing'}; name the array of examples x."
            )
        (x,) = arrays.values()
    if x.dtype.kind not in "fiub":
        raise DataError(f"{path}: x is of {x.dtype}; give numbers.")
    if differences := other_reading(convention_of([x.dtype]), reading):
        raise DataError(
            f"{path}: {differences} in the network's training data. Give x in the same form and scale."
        )
    if reading.get("channels") == "last":
        if x.ndim not in (3, 4):
            raise DataError(
                f"{path}: x is {x.shape}; give [n, height, width, channels], as in training."
            )
        x = np.moveaxis(x, -1, -3)
    if x.ndim > 0 and same_form(x.shape, shape):
        x = x[np.newaxis]
    _require_form(str(path), x.shape[1:], shape)
    classes = y is not None and y.shape == x.shape[:1] and y.dtype.kind in "iuU"
    return _in_blocks(x, prod(shape), [*map(str, y)] if classes else None)


def _of_table(path: Path, request: Request) -> Iterator[Block]:
    reading, delimiter, width = request.reading, request.delimiter, prod(request.shape)
    trained = Fields(reading, "the network's file", "Prepare the data again, and train on them.")
    if delimiter is None and "delimiter" in trained:
        delimiter = trained.text("delimiter")
    header = reading.get("header") if request.header is None else request.header
    facts = request.label, request.notes, delimiter, header
    table = read_table(Archive(path), path.name, *facts, passed_over=reading.get("label"))
    if table.names is not None and reading.get("columns") is not None:
        columns = trained.texts("columns")
        if len({*columns}) < len(columns) or sorted(table.names) != sorted(columns):
            differences = (
                other_reading({"columns": table.names}, {"columns": columns})
                or "its names are not unique"
            )
            raise DataError(
                f"{path}: {differences} in the training data. Give the same columns with unique names; "
                "--label skips a column, --header no reads a table without a header, --delimiter sets the "
                "delimiter."
            )
        table.x = table.x[:, [table.names.index(name) for name in columns]]
    if table.x.shape[1] != width:
        raise DataError(
            f"{path}: a row has {table.x.shape[1]} numbers; the network takes {width}. Skip the column of labels "
            "with --label; --delimiter sets the delimiter."
        )
    return _in_blocks(table.x, width)


def _in_blocks(x: np.ndarray, width: int, true: Sequence[str] | None = None) -> Iterator[Block]:
    for start in range(0, len(x), step := rows_per_block(width)):
        part = slice(start, start + step)
        yield None, np.asarray(x[part]).reshape(-1, width), true and true[part]


def _require_form(source: str, given: tuple[int, ...], taken: tuple[int, ...]) -> None:
    if not same_form(given, taken):
        shown = [" x ".join(map(str, shape)) for shape in (given, taken)]
        raise DataError(
            f"{source} has examples of {shown[0] or 'no'} numbers; the network takes {shown[1]}."
        )
