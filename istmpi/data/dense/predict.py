"""Reads examples to predict; the code that prepares training data computes their features."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.callable.source import is_function
from istmpi.data.dataset import Dataset, other_reading, require_finite, same_form
from istmpi.data.decoder import BadFileError, Notes
from istmpi.data.dense import speech, tables
from istmpi.data.dense.arrays import array_names, convention_of, load_arrays, with_test_drawn
from istmpi.data.dense.split import rows_per_block
from istmpi.data.dense.tables import read_table
from istmpi.data.hdf5 import open_prepared
from istmpi.data.holdout import NO_TEST, TestSplit
from istmpi.data.images import prepare as images
from istmpi.data.sources import open_dataset
from istmpi.data.writer import SUFFIXES
from istmpi.errors import DataError, kind_of
from istmpi.foreign import Fields
from istmpi.optional import optional
from istmpi.tasks import TASKS

Block = tuple[Sequence[str | int], np.ndarray]
"""Names or numbers of a block's examples, and x [b, features], not normalised."""


def read_inputs(
    source: str,
    kind: str,
    shape: tuple[int, ...],
    *,
    split: str = "test",
    resize: bool = False,
    reading: Mapping[str, Any] | None = None,
    skipped: Callable[[str, str], None] = lambda name, reason: None,
    label: str | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    notes: Notes | None = None,
    test: TestSplit = NO_TEST,
) -> Iterator[Block]:
    """Yield the examples of ``source`` in blocks, for a network trained on data of this ``kind`` and ``shape``.

    ``resize``: resize images to ``shape``. ``skipped`` is called with an unreadable file's name and the reason.
    ``label``: a table's column to leave out. ``reading``: the training data's conventions, overridden by ``header`` and
    ``delimiter``. Raises DataError.
    """
    reading, path, count = reading or {}, Path(source), 0
    name = path.name.lower()
    if source == "digits" or is_function(source):
        blocks = _of_dataset(open_dataset(source, test=test), source, shape, split)
    elif not (path.is_file() or path.is_dir()):
        what = f"is {kind_of(path)}" if path.exists() else "does not exist"
        raise DataError(f"{path} {what}. Give a file or a folder to predict.")
    elif name.endswith(SUFFIXES):
        data = open_prepared(path)
        if differences := other_reading(data.reading, reading):
            raise DataError(f"{path}: {differences} in the network's training data. Prepare it the same way.")
        blocks = _of_dataset(data, source, shape, split)
    elif name.endswith((".npz", ".npy")):
        of_bytes = {"type": "bytes"} if kind in ("images", "idx") else {}
        blocks = _of_array(path, shape, split, {**of_bytes, **reading}, test)
    elif name.endswith(tables.ENDINGS):
        blocks = _of_table(path, shape, label, header, delimiter, reading, notes or Notes())
    elif kind == "speech":
        decode = speech.clip_decoder(reading)
        blocks = _of_files(path, speech.ENDINGS, decode, speech.one_thread, speech.MOST_BYTES, skipped)
    elif kind in ("images", "idx"):
        pillow, mode = optional("PIL.Image", "Pillow", "images"), "L" if shape[0] == 1 else "RGB"
        extent = shape[2], shape[1]
        like, size = ("the training data", extent), extent if resize else None
        decode = images.image_decoder(pillow, mode, "Give --resize.", set(), size, like)
        blocks = _of_files(path, images.ENDINGS, decode, nullcontext, images.MOST_BYTES, skipped)
    else:
        takes = " x ".join(map(str, shape))
        raise DataError(f"{path}: this network takes {takes} numbers; give a .csv, .npz, .npy or a prepared .h5.")
    for names, x in blocks:
        require_finite(x, "input example", source, count)
        count += len(x)
        yield (range(count - len(x), count) if names is None else names), x
    if count == 0:
        raise DataError(f"{source} has no examples that can be read.")


def true_classes(source: str, split: str, test: TestSplit) -> Sequence[str] | None:
    given = source == "digits" or is_function(source)
    if not given and not Path(source).is_file():
        return None  # `read_inputs` says why
    if source.lower().endswith(".npz"):
        arrays, *names = _arrays_of(Path(source), split, test)
        x, y = (arrays.get(name, np.empty(0)) for name in names)
        return [*map(str, y)] if y.shape == x.shape[:1] and y.dtype.kind in "iuU" else None
    if not given and not source.lower().endswith(SUFFIXES):
        return None
    data = open_dataset(source, test=test)
    if split not in data.splits or not TASKS[data.task].one_class:
        return None
    return [data.classes[label] for label in data.splits[split].labels()]


def _arrays_of(path: Path, split: str, test: TestSplit) -> tuple[dict[str, np.ndarray], str, str]:
    """Return a file's arrays, and the names of a split's arrays of examples and of labels; "" names a missing array."""
    with path.open("rb") as file:
        arrays = load_arrays(file, str(path))
    if "x" not in map(str.lower, arrays):
        arrays = with_test_drawn(arrays, str(path), test)
    by_name = {name.lower(): name for name in arrays}
    pairs = zip(["x", *array_names("x", split)], ["y", *array_names("y", split)])
    x, y = next((pair for pair in pairs if pair[0] in by_name), ("", ""))
    return arrays, by_name.get(x, ""), by_name.get(y, "")


def _of_dataset(data: Dataset, source: str, shape: tuple[int, ...], split: str) -> Iterator[tuple[None, np.ndarray]]:
    _require_form(source, data.shape, shape)
    data.require_split(split, source)
    rows = data.normalised_by(None).reshaped((data.features,)).splits[split]
    for start in range(0, len(rows), step := rows_per_block(data.features)):
        x = rows.batch(np.arange(start, min(start + step, len(rows)))).inputs[0].numpy()
        yield None, x if data.offset is None else x + data.offset


def _of_array(
    path: Path, shape: tuple[int, ...], split: str, reading: Mapping[str, Any], test: TestSplit
) -> Iterator[tuple[None, np.ndarray]]:
    arrays, taken, _ = _arrays_of(path, split, test)
    if not taken and len(arrays) != 1:
        raise DataError(f"{path} holds {', '.join(arrays) or 'nothing'}; name the array of examples x.")
    x = arrays[taken] if taken else next(iter(arrays.values()))
    if x.dtype.kind not in "fiub":
        raise DataError(f"{path}: x is of {x.dtype}; give numbers.")
    if differences := other_reading(convention_of([x.dtype]), reading):
        raise DataError(f"{path}: {differences} in the network's training data. Give x in the same form and scale.")
    if reading.get("channels") == "last":
        if x.ndim not in (3, 4):
            raise DataError(f"{path}: x is {x.shape}; give [n, height, width, channels], as in training.")
        x = np.moveaxis(x, -1, -3)
    if x.ndim > 0 and same_form(x.shape, shape):
        x = x[np.newaxis]
    _require_form(str(path), x.shape[1:], shape)
    return _in_blocks(x, prod(shape))


def _of_table(
    path: Path,
    shape: tuple[int, ...],
    label: str | None,
    header: bool | None,
    delimiter: str | None,
    reading: Mapping[str, Any],
    notes: Notes,
) -> Iterator[tuple[None, np.ndarray]]:
    trained = Fields(reading, "the network's file", "Prepare the data again, and train on them.")
    if delimiter is None and "delimiter" in trained:
        delimiter = trained.text("delimiter")
    header = reading.get("header") if header is None else header
    table = read_table(Archive(path), path.name, label, notes, delimiter, header, passed_over=reading.get("label"))
    if table.names is not None and reading.get("columns") is not None:
        columns = trained.texts("columns")
        if len({*columns}) < len(columns) or sorted(table.names) != sorted(columns):
            differences = other_reading({"columns": table.names}, {"columns": columns}) or "its names are not unique"
            raise DataError(
                f"{path}: {differences} in the training data. Give the same columns with unique names; "
                "--label skips a column, --header no reads a table without a header, --delimiter sets the "
                "delimiter."
            )
        table.x = table.x[:, [table.names.index(name) for name in columns]]
    if (width := table.x.shape[1]) != prod(shape):
        raise DataError(
            f"{path}: a row has {width} numbers; the network takes {prod(shape)}. Skip the column of labels "
            "with --label; --delimiter sets the delimiter."
        )
    return _in_blocks(table.x, width)


def _in_blocks(x: np.ndarray, width: int) -> Iterator[tuple[None, np.ndarray]]:
    for start in range(0, len(x), step := rows_per_block(width)):
        yield None, np.asarray(x[start : start + step]).reshape(-1, width)


def _of_files(
    path: Path,
    endings: tuple[str, ...],
    decode: Callable[[str, bytes], np.ndarray],
    context: Callable[[], object],
    most_bytes: int,
    skipped: Callable[[str, str], None],
) -> Iterator[tuple[list[str], np.ndarray]]:
    archive = Archive(path)
    names = [name for name in archive.names if name.lower().endswith(endings)]
    if not names:
        raise DataError(f"{path} holds no {' '.join(endings)}; the network was trained on such files.")
    contents, step = archive.read(names, most_bytes), 1
    while part := list(islice(contents, step)):
        rows: dict[str, np.ndarray] = {}
        with context():
            for name, content in part:
                try:
                    rows[name] = decode(name, content).reshape(-1).astype(np.float32)
                except BadFileError as error:
                    skipped(name, str(error))
        if rows:
            x = np.stack(list(rows.values()))
            step = rows_per_block(x.shape[1])
            yield list(rows), x


def _require_form(source: str, given: tuple[int, ...], taken: tuple[int, ...]) -> None:
    if not same_form(given, taken):
        shown = [" x ".join(map(str, shape)) for shape in (given, taken)]
        raise DataError(f"{source} has examples of {shown[0] or 'no'} numbers; the network takes {shown[1]}.")
