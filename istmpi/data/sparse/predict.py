"""Reads sparse rows to predict, from a text, a scipy CSR matrix or a prepared file; labels are ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from istmpi.data.dataset import other_reading
from istmpi.data.files.archive import Archive
from istmpi.data.hdf5 import open_prepared
from istmpi.data.sparse.csr import STEP, csr_matrix
from istmpi.data.sparse.lines import Header, Limits, Lines, parsed, rows_behind
from istmpi.data.sparse.prepare import COUNTED_FROM
from istmpi.data.sparse.split import Ragged, offsets_of
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

    A text is as `istmpi prepare xc` takes them, its header and its labels may be missing. With a header its features
    are counted from 0, else as ``reading`` says of the training data.
    """
    path, count = Path(source), 0
    if not path.is_file():
        raise DataError(f"{path} is no file. Give a file of sparse rows to predict.")
    name = path.name.lower()
    if name.endswith(SUFFIXES):
        blocks = _of_prepared(path, features, split, reading)
    elif name.endswith(".npz"):
        rows, (_, width) = csr_matrix(Archive(path), path.name)
        _require(path, width, features)
        blocks = _in_steps(rows)
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
        _require(path, header.features, features)
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
    """Return the header of the file, if it has one, and the number of blank lines that it counts as rows."""
    lines = Lines()
    name, pieces = next(files := archive.pieces(archive.names))  # pieces are good as long as this iterator lives
    header, blocks = rows_behind(name, pieces)
    for _, block in blocks if header else ():
        filled = [bool(line.partition(b"#")[0].strip()) for line in block.split(b"\n")[:-1]]
        lines.add(np.array(filled, bool))
    return header, lines.blank_rows(header, name)


def _of_prepared(path: Path, features: int, split: str, reading: Mapping[str, Any]) -> Iterator[Ragged]:
    data = open_prepared(path)
    if not TASKS[data.task].ranks_labels:
        raise DataError(f"{path} is for {data.task}, but this network takes sparse rows. Give such data.")
    _require(path, data.features, features)
    if split not in data.splits:
        raise DataError(f"{path} has no split {split}; it has {', '.join(data.splits)}.")
    if differences := other_reading(data.reading, reading):
        raise DataError(f"{path}: {differences} in the network's training data. Prepare it with --counted-from.")
    return _in_steps(data.splits[split].rows, data.splits[split].guards)


def _in_steps(rows: Ragged, guards: tuple = ()) -> Iterator[Ragged]:
    for start in range(0, len(rows), STEP):
        yield rows.take(np.arange(start, min(start + STEP, len(rows))), guards)


def _require(source: Path, given: int, features: int) -> None:
    if given != features:
        raise DataError(f"{source} has {given:,} features; the network takes {features:,}. Number them as in training.")
