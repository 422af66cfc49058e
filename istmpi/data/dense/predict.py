"""Reads examples to predict; the code that prepares training data computes their features."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.data import KINDS, OTHER
from istmpi.data.archive import Archive
from istmpi.data.callable.source import is_function
from istmpi.data.dataset import Dataset, describe_difference, have_same_form, require_finite
from istmpi.data.decoder import Block, Request
from istmpi.data.dense import tables
from istmpi.data.dense.arrays import array_names, draw_missing_test, find_convention, load_arrays
from istmpi.data.dense.encoding import Encoding
from istmpi.data.dense.split import rows_per_block
from istmpi.data.dense.tables import read_table
from istmpi.data.hdf5 import open_prepared
from istmpi.data.sources import open_dataset
from istmpi.data.writer import SUFFIXES
from istmpi.errors import DataError, describe_path
from istmpi.foreign import Fields

ARRAYS = (".npz", ".npy")


def read_inputs(source: str, kind: str, shape: tuple[int, ...], **options: Any) -> Iterator[Block]:
    """Yield the examples of ``source`` in blocks, for a network trained on data of this ``kind``
    and ``shape``.

    ``options`` are those of `Request`. Raises DataError.
    """
    request = Request(shape, **options)
    blocks, used = _open_blocks(source, Path(source), kind, request)
    given = {
        name for name in ("label", "header", "delimiter") if getattr(request, name) is not None
    }
    if request.resize:
        given.add("resize")
    # An option without an effect would hide a mistake.
    if given - used:
        raise DataError(f"--{min(given - used)} does not go with {source}. Leave it out.")
    count = 0
    for block in blocks:
        require_finite(block.x, "input example", source, count)
        first = count
        count += len(block.x)
        if block.names is None:
            block = block._replace(names=range(first, count))
        yield block
    if count == 0:
        raise DataError(f"{source} has no examples that can be read.")


def _open_blocks(
    source: str, path: Path, kind: str, request: Request
) -> tuple[Iterator[Block], set[str]]:
    """Return the examples of ``source``, and the options that its form takes."""
    if source == "digits" or is_function(source):
        data = open_dataset(source, test=request.test)
        return _read_dataset(data, source, request), set()
    if not (path.is_file() or path.is_dir()):
        raise DataError(f"{path} {describe_path(path)}. Give a file or a folder to predict.")
    name = path.name.lower()
    trained_on = KINDS.get(kind, OTHER)
    if name.endswith(SUFFIXES):
        data = open_prepared(path)
        differences = describe_difference(data.reading, request.reading)
        if differences:
            raise DataError(
                f"{path}: {differences} in the network's training data. Prepare it the same way."
            )
        return _read_dataset(data, source, request), set()
    # A network of images also takes an array of them.
    is_plain = name.endswith((*ARRAYS, *tables.ENDINGS))
    if trained_on.examples and (name.endswith(trained_on.endings) or not is_plain):
        used = {"resize"} if len(request.shape) == 3 else set()
        return trained_on.examples(path, request), used
    if name.endswith(ARRAYS):
        return _read_array(path, request, trained_on.reading), set()
    if name.endswith(tables.ENDINGS):
        return _read_table(path, request), {"label", "header", "delimiter"}
    shown = " x ".join(map(str, request.shape))
    raise DataError(
        f"{path}: this network takes {shown} numbers; give a .csv, .npz, .npy or a prepared .h5."
    )


def _read_dataset(data: Dataset, source: str, request: Request) -> Iterator[Block]:
    """Yield a split of a data set, as its examples were before they were normalised."""
    _require_form(source, data.shape, request.shape)
    data.require_split(request.split, source)
    # The network normalises examples itself, by the moments of its training.
    rows = data.with_normalisation(None).reshape((data.features,)).splits[request.split]
    labels = rows.labels() if data.classes else None
    step = rows_per_block(data.features)
    for start in range(0, len(rows), step):
        part = np.arange(start, min(start + step, len(rows)))
        x = rows.batch(part).inputs[0].numpy()
        # The network subtracts the offset of its own training data.
        if data.offset is not None:
            x = x + data.offset
        classes = None
        if data.classes and labels is not None:
            classes = [data.classes[label] for label in labels[part]]
        yield Block(names=None, x=x, classes=classes)


def _read_array(path: Path, request: Request, reading: Mapping[str, Any]) -> Iterator[Block]:
    """Yield examples of an array, with channels first. Raises DataError for another convention."""
    shape = request.shape
    reading = {**reading, **request.reading}
    x, y = _load_pair(path, request)
    if x.dtype.kind not in "fiub":
        raise DataError(f"{path}: x is of {x.dtype}; give numbers.")
    differences = describe_difference(find_convention([x.dtype]), reading)
    if differences:
        raise DataError(
            f"{path}: {differences} in the network's training data. Give x in the same form and "
            "scale."
        )
    if reading.get("channels") == "last":
        if x.ndim not in (3, 4):
            raise DataError(
                f"{path}: x is {x.shape}; give [n, height, width, channels], as in training."
            )
        x = np.moveaxis(x, -1, -3)
    # A single example may come without an axis of examples.
    if x.ndim > 0 and have_same_form(x.shape, shape):
        x = x[np.newaxis]
    _require_form(str(path), x.shape[1:], shape)
    classes = None
    if y is not None and y.shape == x.shape[:1] and y.dtype.kind in "iuU":
        classes = [str(label) for label in y]
    return _cut_blocks(x, prod(shape), classes)


def _load_pair(path: Path, request: Request) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the arrays of examples and of labels; None if there are no labels."""
    with path.open("rb") as file:
        arrays = load_arrays(file, str(path))
    # An x of its own is meant to be predicted whole.
    if "x" not in map(str.lower, arrays):
        arrays = draw_missing_test(arrays, str(path), request.test)
    by_name = {name.lower(): array for name, array in arrays.items()}
    for x, y in [("x", "y"), *array_names(request.split)]:
        if x in by_name:
            return by_name[x], by_name.get(y)
    if len(arrays) != 1:
        raise DataError(
            f"{path} holds {', '.join(arrays) or 'nothing'}; name the array of examples x."
        )
    return next(iter(arrays.values())), None


def _read_table(path: Path, request: Request) -> Iterator[Block]:
    """Yield rows of a table, with the columns in the order of training."""
    reading = request.reading
    trained = Fields(reading, "the network's file", "Prepare the data again, and train on them.")
    delimiter = request.delimiter
    if delimiter is None and "delimiter" in trained:
        delimiter = trained.text("delimiter")
    header = request.header
    if header is None:
        header = reading.get("header")
    encoding = Encoding()
    if "encoding" in trained:
        encoding = Encoding.from_tree(trained.inner("encoding"))
    columns = _read_columns(trained)
    table = read_table(
        Archive(path),
        path.name,
        label=request.label,
        notes=request.notes,
        delimiter=delimiter,
        header=header,
        left_out=reading.get("label"),
        encoding=encoding,
        expected=columns,
    )
    x = table.x
    if table.names is not None and columns is not None:
        # A table to predict may have its columns in another order.
        table.take_order(columns)
        x = encoding.encode(table.x, columns)
        encoding.note(request.notes)
    width = prod(request.shape)
    if x.shape[1] != width:
        raise DataError(
            f"{path}: a row has {x.shape[1]} numbers; the network takes {width}. Skip the column "
            "of labels with --label; --delimiter sets the delimiter."
        )
    return _cut_blocks(x, width)


def _read_columns(trained: Fields) -> list[str] | None:
    """Return the names of the columns of training; None if its table had no header."""
    if trained.tree.get("columns") is None:
        return None
    return trained.texts("columns")


def _cut_blocks(x: np.ndarray, width: int, classes: Sequence[str] | None = None) -> Iterator[Block]:
    step = rows_per_block(width)
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        rows = np.asarray(x[part]).reshape(-1, width)
        yield Block(names=None, x=rows, classes=classes[part] if classes else None)


def _require_form(source: str, given: tuple[int, ...], taken: tuple[int, ...]) -> None:
    if not have_same_form(given, taken):
        shown = " x ".join(map(str, given)) or "no"
        expected = " x ".join(map(str, taken))
        raise DataError(f"{source} has examples of {shown} numbers; the network takes {expected}.")
