"""Reads sparse rows to predict; their labels are ignored."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.dataset import describe_difference
from istmpi.data.hdf5 import Guard, open_prepared
from istmpi.data.sparse.lines import COUNTED_FROM, Limits, read_lines
from istmpi.data.sparse.split import Ragged, SparseSplit
from istmpi.data.writer import SUFFIXES
from istmpi.errors import DataError

STEP = 4096
"""The number of rows of a block."""


def read_rows(
    source: str,
    features: int,
    split: str = "test",
    reading: Mapping[str, Any] = MappingProxyType({COUNTED_FROM: 0}),
    tell: Callable[[str], None] = lambda message: None,
) -> Iterator[Ragged]:
    """Yield the rows of a source in blocks, for a network that takes ``features`` features.

    A text file may lack header and labels. Features count from 0 if the file has a header,
    otherwise as in ``reading``. ``tell`` gets a message if the numbering is in doubt. Raises
    DataError.
    """
    path = Path(source)
    if not path.is_file():
        raise DataError(f"{path} is not a file. Give a file of sparse rows to predict.")
    # Text is in memory; the blocks of a prepared file are verified when they are read.
    guards: Sequence[Guard | None] = ()
    if path.name.lower().endswith(SUFFIXES):
        prepared = _open_prepared(path, features, split, reading)
        rows = prepared.rows
        guards = prepared.guards
    else:
        rows = _read_text(path, features, reading, tell)
    for start in range(0, len(rows), STEP):
        yield rows.take(np.arange(start, min(start + STEP, len(rows))), guards)


def _read_text(
    path: Path, features: int, reading: Mapping[str, Any], tell: Callable[[str], None]
) -> Ragged:
    """Return the rows of a file, with features counted from 0."""
    archive = Archive(path)
    if len(archive.names) > 1:
        raise DataError(f"{path} holds {len(archive.names):,} files. Give a single file of rows.")
    first = reading.get(COUNTED_FROM, 0)
    with archive.stream(archive.names[0]) as stream:
        # These limits are for a file without a header; a header states its own.
        read = read_lines(stream, Limits(features, first=first))
    if read.header:
        _require_features(path, read.header.features, features)
        if first:
            tell(
                f"{path} has a header, so its features are counted from 0; the training data had "
                "no header and were counted from 1"
            )
        # A header states that features are counted from 0.
        first = 0
    elif COUNTED_FROM not in reading:
        tell(
            f"features of {path} are counted from 0; the network does not record how its training "
            "data were counted"
        )
    columns, values = read.features.arrays
    return Ragged(read.features.offsets, (columns - first, values))


def _open_prepared(
    path: Path, features: int, split: str, reading: Mapping[str, Any]
) -> SparseSplit:
    data = open_prepared(path)
    if not isinstance(data.train, SparseSplit):
        raise DataError(
            f"{path} is for {data.task}, but this network takes sparse rows. Give sparse rows."
        )
    _require_features(path, data.features, features)
    data.require_split(split, path)
    differences = describe_difference(data.reading, reading)
    if differences:
        raise DataError(
            f"{path}: {differences} in the network's training data. Prepare it with --counted-from."
        )
    rows = data.splits[split]
    assert isinstance(rows, SparseSplit), rows
    return rows


def _require_features(source: Path, given: int, features: int) -> None:
    if given != features:
        raise DataError(
            f"{source} has {given:,} features; the network takes {features:,}. Number features as "
            "in training."
        )
