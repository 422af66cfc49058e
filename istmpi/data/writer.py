"""Writes prepared files, with checksums of every dataset. A file appears only when complete."""

import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.errors import ConfigError
from istmpi.files import name_at_last, require_room, temporary, writing
from istmpi.foreign import printable
from istmpi.hdf5 import CHECKSUMS, File, new_file, seal, set_attribute

FORMAT = "istmpi-data"
VERSION = 2
SUFFIXES = (".h5", ".hdf5")
READING = "reading"
_ROOM = 2**20
"""Bytes for the structure and HDF5's bookkeeping."""

Progress = Callable[[str, int, int], None]
"""A callback, called often as ``progress(stage, done, total)``."""


@dataclass(frozen=True)
class Material:
    """The content of a prepared file."""

    source: str
    task: str
    shape: tuple[int, ...]
    outputs: int
    classes: tuple[str, ...] | None
    counts: Mapping[str, int]
    attributes: Mapping[str, Any]
    datasets: Mapping[str, Any]
    """Arrays by their paths in the file; an array is any object with shape, dtype and slicing."""
    skipped: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """A view of a source as [n, features] of type ``dtype``; slices convert rows."""

    source: Any
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.source.shape[0], prod(self.source.shape[1:])

    def __getitem__(self, rows: slice) -> np.ndarray:
        part = np.asarray(self.source[rows])
        return np.ascontiguousarray(part.reshape(len(part), -1), self.dtype)


@dataclass(frozen=True)
class Chosen:
    """A selection of a source's rows; slices read them."""

    source: np.ndarray
    rows: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.rows), *self.source.shape[1:]

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self.source[self.rows[rows]]


BLOCK = 2**16
"""The approximate bytes of a block that has a checksum."""


def cut_blocks(rows: int, row_bytes: int) -> list[tuple[int, int]]:
    """Return the first row of each block, and the row behind its last."""
    # Blocks of about 64 KiB: a batch of random rows reads little more than its rows.
    # The quotient is rounded up; a block has at least one row.
    blocks = max(min(rows, -(-rows * row_bytes // BLOCK)), 1)
    return [(rows * block // blocks, rows * (block + 1) // blocks) for block in range(blocks)]


def write(
    kind: str,
    material: Material,
    target: str | os.PathLike,
    force: bool = False,
    reading: Mapping[str, Any] | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> None:
    """Write a prepared file; ConfigError or OutputError leaves ``target`` as it was. ``reading``:
    conventions."""
    target = Path(target)
    check_target(target, force)
    beside = temporary(target)
    datasets = dict(material.datasets)
    if reading:
        datasets[READING] = np.frombuffer(json.dumps(reading).encode(), np.uint8)
    try:
        with writing(target), new_file(beside, _ROOM) as file:
            for name, value in _collect_attributes(kind, material).items():
                set_attribute(file, name, value)
            checksums = _write_datasets(file, datasets, progress)
            for path, values in checksums.items():
                file.create_dataset(path, data=values)
            seal(file, checksums)
        with writing(target):
            # A failure before this line leaves the old file.
            name_at_last(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _collect_attributes(kind: str, material: Material) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        # A path may not be UTF-8.
        "source": printable(material.source),
        "task": material.task,
        "outputs": material.outputs,
        "skipped": len(material.skipped),
        **material.attributes,
        **material.counts,
    }


def _write_datasets(
    file: File, datasets: Mapping[str, Any], progress: Progress
) -> dict[str, np.ndarray]:
    """Write all rows; return the checksums of their blocks, by the paths of these in the file."""
    checksums = {}
    total = sum(values.shape[0] for values in datasets.values())
    done = 0
    for path, values in datasets.items():
        dataset = file.create_dataset(path, values.shape, values.dtype.newbyteorder("<"))
        row_bytes = prod(values.shape[1:]) * values.dtype.itemsize
        of_blocks = []
        for first, last in cut_blocks(values.shape[0], row_bytes):
            rows = np.ascontiguousarray(values[first:last], dataset.dtype)
            dataset[first:last] = rows
            of_blocks.append(zlib.crc32(rows.data))
            progress("writing", done + last, total)
        checksums[CHECKSUMS + path] = np.array(of_blocks, np.uint32)
        done += values.shape[0]
    return checksums


def check_target(target: Path, force: bool) -> None:
    """Raise ConfigError for an unfit or taken name, OutputError for a folder without room."""
    if target.suffix not in SUFFIXES:
        raise ConfigError(
            f"{target} must end in .h5, as prepared files do. Name it {target.name}.h5."
        )
    if target.is_dir() or (target.exists() and not force):
        raise ConfigError(f"{target} exists. Replace it with --force, or choose another name.")
    require_room(target)
