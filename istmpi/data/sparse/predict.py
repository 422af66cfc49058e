"""Reads sparse rows to predict, from a text or a prepared file; labels are ignored."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from istmpi.data.dataset import other_reading
from istmpi.data.files.archive import Archive
from istmpi.data.hdf5 import open_prepared
from istmpi.data.sparse.lines import Limits, read_lines
from istmpi.data.sparse.prepare import COUNTED_FROM, STEP
from istmpi.data.sparse.split import Ragged
from istmpi.data.writer import SUFFIXES
from istmpi.errors import DataError
from istmpi.tasks import TASKS


def read_rows(
    source: str,
    features: int,
    split: str = "test",
    reading: Mapping[str, Any] = MappingProxyType({COUNTED_FROM: 0}),
    tell: Callable[[str], None] = lambda message: None,
) -> Iterator[Ragged]:
    """Yield the rows of a source, some at a time, for a network that takes so many features.

    A text's header and labels may be missing. With a header its features are counted from 0, else as ``reading`` says.
    """
    path = Path(source)
    if not path.is_file():
        raise DataError(f"{path} is not a file. Give a file of sparse rows to predict.")
    if path.name.lower().endswith(SUFFIXES):
        rows, guards = _of_prepared(path, features, split, reading)
    else:
        rows, guards = _of_text(path, features, reading, tell), ()
    for start in range(0, len(rows), STEP):
        yield rows.take(np.arange(start, min(start + STEP, len(rows))), guards)


def _of_text(path: Path, features: int, reading: Mapping[str, Any], tell: Callable[[str], None]) -> Ragged:
    archive, first = Archive(path), reading.get(COUNTED_FROM, 0)
    if len(archive.names) > 1:
        raise DataError(f"{path} holds {len(archive.names):,} files. Give a single file of rows.")
    with archive.stream(archive.names[0]) as stream:
        read = read_lines(stream, Limits(features, first=first))
    if read.header:
        _require(path, read.header.features, features)
        if first:
            tell(
                f"{path} has a header, so its features are counted from 0; the training data had no header and "
                "were counted from 1"
            )
        first = 0
    elif COUNTED_FROM not in reading:
        tell(f"features of {path} are counted from 0; the network does not record how its training data were counted")
    columns, values = read.features.arrays
    return Ragged(read.features.offsets, (columns - first, values))


def _of_prepared(path: Path, features: int, split: str, reading: Mapping[str, Any]) -> tuple[Ragged, tuple]:
    data = open_prepared(path)
    if not TASKS[data.task].ranks_labels:
        raise DataError(f"{path} is for {data.task}, but this network takes sparse rows. Give sparse rows.")
    _require(path, data.features, features)
    if split not in data.splits:
        raise DataError(f"{path} has no split {split}; it has {', '.join(data.splits)}.")
    if differences := other_reading(data.reading, reading):
        raise DataError(f"{path}: {differences} in the network's training data. Prepare it with --counted-from.")
    return data.splits[split].rows, data.splits[split].guards


def _require(source: Path, given: int, features: int) -> None:
    if given != features:
        raise DataError(
            f"{source} has {given:,} features; the network takes {features:,}. Number features as in training."
        )
