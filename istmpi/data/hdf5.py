"""The prepared file: one HDF5 file that holds a data set ready to be memory-mapped
(docs/formats.md).

HDF5 only finds the rows, which are read by memory maps. Opening the file verifies all checksums
except those of `MAPPED`. A block of a `MAPPED` dataset is verified when a row of the block is first
read.
"""

import json
import mmap
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from istmpi.data import KINDS, OTHER
from istmpi.data.dataset import SPLITS, Dataset, Split
from istmpi.data.writer import FORMAT, READING
from istmpi.errors import DataError
from istmpi.hdf5 import (
    CHANGED,
    Read,
    checksum_errors,
    damage_named,
    dataset_at,
    datasets,
    differs,
    expected_checksums,
    misplaced,
    opened,
    plain,
    sealed,
    shown,
    structure_errors,
    version_of,
)
from istmpi.tasks import TASKS

Opened = tuple[dict[str, Split], dict[str, Any]]
CURE = "; prepare or copy it again"
MAPPED = ("x", "tokens", "indices", "data")
"""Names of large datasets, whose blocks are verified when first read."""


def open_prepared(path: str | os.PathLike) -> Dataset:
    with prepared_file(path) as file:
        return file.dataset


@contextmanager
def prepared_file(path: str | os.PathLike) -> Iterator["PreparedFile"]:
    path = Path(path)
    with damage_named(path, CURE):
        if not path.is_file() or not h5py.is_hdf5(path):
            raise DataError(f"{path} is not an HDF5 file. Make it with `istmpi prepare`.")
    with opened(path, PreparedFile, CURE) as file:
        yield file


class PreparedFile:
    def __init__(self, path: Path, file: h5py.File):
        self._path, self._file = path, file
        self._size = path.stat().st_size
        self.version = version_of(file, path, FORMAT, "prepared data", "Prepare it again")
        self.dataset = self._read()
        if self.version > 1 and not sealed(file):
            raise self.error(f"is damaged: {next(structure_errors(file), CHANGED)}{CURE}")

    @property
    def nbytes(self) -> int:
        return sum(dataset.id.get_storage_size() for dataset in datasets(self._file).values())

    def errors(self, read: Read = lambda nbytes: None) -> Iterator[str]:
        with damage_named(self._path, CURE):
            yield from checksum_errors(self._file, read=read)

    def _read(self) -> Dataset:
        task = self.text("task")
        if task not in TASKS:
            raise self.error(f"has task {shown(task)}; known: {', '.join(TASKS)}. Prepare it again")
        kind = self.text("kind")
        splits, facts = KINDS.get(kind, OTHER).open(self)
        facts["reading"] = json.loads(self.mapped(READING).tobytes()) if self.has(READING) else {}
        facts |= {"outputs": self.outputs, "classes": self.names("classes")}
        facts |= {
            "source": self.text("source"),
            "kind": kind,
            "shape": facts.get("shape") or self.shape,
        }
        small = [path for path in datasets(self._file) if path.rpartition("/")[2] not in MAPPED]
        for error in checksum_errors(self._file, paths=small):
            raise self.error(f"is damaged: {error}{CURE}")
        return Dataset(splits, task, **facts)

    @property
    def splits(self) -> list[str]:
        return [
            name
            for name in SPLITS
            if name != "validation" or self._file.id.links.exists(name.encode())
        ]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(length) for length in self.attribute("shape"))

    @property
    def outputs(self) -> int:
        return int(self.attribute("outputs"))

    def has(self, name: str) -> bool:
        return dataset_at(self._file, name) is not None

    def names(self, path: str) -> tuple[str, ...] | None:
        return tuple(self._stored(path).asstr()[()]) if self.has(path) else None

    def _stored(self, name: str) -> h5py.Dataset:
        if (dataset := dataset_at(self._file, name)) is None:
            raise self.error(f"has no dataset {name}; prepare it again")
        if problem := misplaced(dataset, self._size):
            raise self.error(f"has {name}, which {problem}{CURE}")
        return dataset

    def mapped(self, name: str) -> np.memmap:
        dataset = self._stored(name)
        return np.memmap(self._path, dataset.dtype, "r", dataset.id.get_offset(), dataset.shape)

    def guarded(self, name: str) -> tuple[np.memmap, Callable[..., None] | None]:
        x, expected = self.mapped(name), expected_checksums(self._file, name)
        return x, letting_go(
            x, None if expected is None else FirstRead(x, expected, self._path, name)
        )

    def attribute(self, name: str) -> object:
        if name not in self._file.attrs:
            raise self.error(f"has no attribute {name}; prepare it again")
        return self._file.attrs[name]

    def text(self, name: str) -> str:
        return str(plain(self.attribute(name)))

    def error(self, problem: str) -> DataError:
        return DataError(f"{self._path} {problem}.")


class FirstRead:
    """A function that verifies the checksum of a block of ``x`` before the block is first read."""

    def __init__(self, x: np.ndarray, expected: np.ndarray, path: Path, name: str):
        self._x, self._expected = x.view(np.ndarray), expected
        self._path, self._name = path, name
        self._unread = np.ones(len(expected), bool)
        self._left = len(expected)

    def __call__(self, rows: np.ndarray, length: int | np.ndarray = 1) -> None:
        """Verify the blocks of ``length`` rows from each of ``rows`` on. Raises DataError if a
        block is damaged."""
        if not self._left:
            return
        blocks, count = len(self._expected), len(self._x)
        first, last = (
            ((np.asarray(rows, np.int64) + more) * blocks - 1) // count for more in (1, length)
        )
        touched = np.concatenate(
            [np.minimum(first + n, last) for n in range(int((last - first).max(initial=0)) + 1)]
        )
        for block in np.unique(touched[self._unread[touched]]).tolist():
            first, last = count * block // blocks, count * (block + 1) // blocks
            if zlib.crc32(self._x[first:last]) != self._expected[block]:
                raise DataError(
                    f"{self._path} is damaged: {differs(self._name, first, last)}{CURE}."
                )
            self._unread[block] = False
            self._left -= 1


KEPT = 2**31
"""The bytes above which a memory map's pages, which count as memory, are released
(`letting_go`)."""


def letting_go(x: np.memmap, before: Callable[..., None] | None) -> Callable[..., None] | None:
    """Return ``before``; for a map above `KEPT`, a function that first releases its pages and then
    calls ``before``."""
    if x.nbytes <= KEPT:
        return before

    def let_go(rows: np.ndarray, length: int | np.ndarray = 1) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):
            x.base.madvise(mmap.MADV_DONTNEED)
        if before is not None:
            before(rows, length)

    return let_go
