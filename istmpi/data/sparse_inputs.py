"""Sparse rows that are to be predicted: of a text, a CSR matrix of scipy's or a prepared file; labels do not count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from istmpi.data.hdf5 import open_prepared
from istmpi.data.prepare.archive import Archive
from istmpi.data.prepare.csr import STEP, csr_matrix, offsets_of
from istmpi.data.prepare.xc_lines import Limits, blocks_of_lines, header_of, parsed
from istmpi.data.sparse import Ragged
from istmpi.data.writer import SUFFIXES
from istmpi.errors import DataError
from istmpi.tasks import MULTI_LABEL


def read_rows(source: str, features: int, split: str = "test") -> Iterator[Ragged]:
    """The rows of a source, some at a time, for a network that takes so many features, numbered from 0.

    A text is as `istmpi prepare xc` takes them, its header and its labels may be missing. ``split`` counts for prepared
    data. DataError where it has no rows, or other features.
    """
    path, count = Path(source), 0
    if not path.is_file():
        raise DataError(f"{path} is no file. Give a file of sparse rows to predict.")
    name = path.name.lower()
    read = _of_text
    if name.endswith(SUFFIXES):
        read = _of_prepared
    elif name.endswith(".npz"):
        read = _of_matrix
    for rows in read(path, features, split):
        count += len(rows)
        yield rows
    if not count:
        raise DataError(f"{path} has no rows. Give a file with some.")


def _of_text(path: Path, features: int, split: str) -> Iterator[Ragged]:
    line, limits = 1, Limits(features)
    for name, pieces in Archive(path).pieces([path.name]):
        for number, block in enumerate(blocks_of_lines(name, pieces)):
            if number == 0:
                first, _, rest = block.partition(b"\n")
                if header := header_of(name, first):
                    _require(str(path), header.features, features)
                    block, line = rest, 2
            rows = parsed(name, block, line, limits)
            yield Ragged(offsets_of(rows.counts), (rows.columns, rows.values))
            line += block.count(b"\n")


def _of_matrix(path: Path, features: int, split: str) -> Iterator[Ragged]:
    rows, (_, width) = csr_matrix(Archive(path), path.name)
    _require(str(path), width, features)
    return _in_steps(rows)


def _of_prepared(path: Path, features: int, split: str) -> Iterator[Ragged]:
    data = open_prepared(path)
    if data.task != MULTI_LABEL:
        raise DataError(f"{path} is for {data.task}, but this network takes sparse rows. Give such data.")
    _require(str(path), data.features, features)
    if split not in data.splits:
        raise DataError(f"{path} has no split {split}; it has {', '.join(data.splits)}.")
    found = data.splits[split]
    return _in_steps(found.rows, found.guards)


def _in_steps(rows: Ragged, guards: tuple = ()) -> Iterator[Ragged]:
    for start in range(0, len(rows), STEP):
        yield rows.take(np.arange(start, min(start + STEP, len(rows))), guards)


def _require(source: str, given: int, features: int) -> None:
    if given != features:
        raise DataError(f"{source} has {given:,} features; the network takes {features:,}. Number them as in training.")
