"""Sparse rows that are to be predicted: of a text, a CSR matrix of scipy's or a prepared file; labels do not count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from istmpi.data.dataset import other_reading
from istmpi.data.files.archive import Archive
from istmpi.data.hdf5 import open_prepared
from istmpi.data.sparse.csr import STEP, csr_matrix, offsets_of
from istmpi.data.sparse.lines import Header, Limits, Lines, parsed, rows_behind
from istmpi.data.sparse.prepare import COUNTED_FROM
from istmpi.data.sparse.split import Ragged
from istmpi.data.writer import SUFFIXES
from istmpi.errors import DataError
from istmpi.tasks import MULTI_LABEL


def read_rows(
    source: str,
    features: int,
    split: str = "test",
    reading: Mapping[str, Any] = MappingProxyType({COUNTED_FROM: 0}),
    tell: Callable[[str], None] = lambda message: None,
) -> Iterator[Ragged]:
    """The rows of a source, some at a time, for a network that takes so many features.

    A text is as `istmpi prepare xc` takes them, its header and its labels may be missing. With a header its features
    are counted from 0, else as ``reading`` says of the training data; ``tell`` gets what is worth a warning. ``split``
    counts for prepared data. DataError where it has no rows, or other features.
    """
    path, count = Path(source), 0
    if not path.is_file():
        raise DataError(f"{path} is no file. Give a file of sparse rows to predict.")
    name = path.name.lower()
    if name.endswith(SUFFIXES):
        blocks = _of_prepared(path, features, split, reading)
    elif name.endswith(".npz"):
        blocks = _of_matrix(path, features)
    else:
        blocks = _of_text(path, features, reading, tell)
    for rows in blocks:
        count += len(rows)
        yield rows
    if not count:
        raise DataError(f"{path} has no rows. Give a file with some.")


def _of_text(path: Path, features: int, reading: Mapping[str, Any], tell: Callable[[str], None]) -> Iterator[Ragged]:
    archive, first = Archive(path), reading.get(COUNTED_FROM, 0)
    if len(archive.names) > 1:
        raise DataError(f"{path} holds {len(archive.names):,} files. Give one file of rows.")
    header, blank = _counted(archive)
    if header:
        _require(str(path), header.features, features)
        if first:
            tell(f"{path} has a header, so its features are counted from 0; those of training, without, were from 1")
        first = 0
    elif COUNTED_FROM not in reading:
        tell(f"features of {path} are counted from 0; the network does not say how those of its training data were")
    limits, row = Limits(features, first=first), 0
    for name, pieces in archive.pieces(archive.names):
        for line, block in rows_behind(name, pieces)[1]:
            rows = parsed(name, block, line, limits)
            kept = rows.label_counts + rows.counts > 0
            if blank:
                kept = np.arange(row, row + len(kept)) < header.rows
            row += len(kept)
            yield Ragged(offsets_of(rows.counts[kept]), (rows.columns - first, rows.values))


def _counted(archive: Archive) -> tuple[Header | None, int]:
    """The header of the only file, if it has one, and how many blank lines it counts as rows."""
    lines = Lines()
    for name, pieces in archive.pieces(archive.names):
        header, blocks = rows_behind(name, pieces)
        for _, block in blocks if header else ():
            filled = [bool(line.partition(b"#")[0].strip()) for line in block.split(b"\n")[:-1]]
            lines.add(np.array(filled, bool))
        return header, lines.blank_rows(header, name)
    raise AssertionError("an archive has a file")


def _of_matrix(path: Path, features: int) -> Iterator[Ragged]:
    rows, (_, width) = csr_matrix(Archive(path), path.name)
    _require(str(path), width, features)
    return _in_steps(rows)


def _of_prepared(path: Path, features: int, split: str, reading: Mapping[str, Any]) -> Iterator[Ragged]:
    data = open_prepared(path)
    if data.task != MULTI_LABEL:
        raise DataError(f"{path} is for {data.task}, but this network takes sparse rows. Give such data.")
    _require(str(path), data.features, features)
    if split not in data.splits:
        raise DataError(f"{path} has no split {split}; it has {', '.join(data.splits)}.")
    if differences := other_reading(data.reading, reading):
        raise DataError(f"{path}: {differences} in the network's training data. Prepare it with --counted-from.")
    found = data.splits[split]
    return _in_steps(found.rows, found.guards)


def _in_steps(rows: Ragged, guards: tuple = ()) -> Iterator[Ragged]:
    for start in range(0, len(rows), STEP):
        yield rows.take(np.arange(start, min(start + STEP, len(rows))), guards)


def _require(source: str, given: int, features: int) -> None:
    if given != features:
        raise DataError(f"{source} has {given:,} features; the network takes {features:,}. Number them as in training.")
