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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
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
    all_datasets,
    checksum_errors,
    dataset_at,
    differs,
    find_misplaced,
    is_sealed,
    name_damage,
    opened,
    plain,
    read_checksums,
    read_version,
    shown,
    structure_errors,
    without_checksums,
)
from istmpi.tasks import TASKS

Opened = tuple[Mapping[str, Split], dict[str, Any]]
"""The splits of a prepared file, and arguments of `Dataset` that its kind adds."""
Guard = Callable[..., None]
"""Verifies rows before they are read: called with the first rows of runs, and their lengths."""
CURE = "; prepare or copy it again"
MAPPED = ("x", "tokens", "indices", "data")
"""Names of large datasets, whose blocks are verified when first read."""


def open_prepared(path: str | os.PathLike) -> Dataset:
    with prepared_file(path) as file:
        return file.dataset


@contextmanager
def prepared_file(path: str | os.PathLike) -> Iterator["PreparedFile"]:
    path = Path(path)
    with name_damage(path, CURE):
        if not path.is_file() or not h5py.is_hdf5(path):
            raise DataError(f"{path} is not an HDF5 file. Make it with `istmpi prepare`.")
    with opened(path, PreparedFile, CURE) as file:
        yield file


class PreparedFile:
    def __init__(self, path: Path, file: h5py.File):
        self._path = path
        self._file = file
        self._size = path.stat().st_size
        self.version = read_version(file, path, FORMAT, "prepared data", "Prepare it again")
        self.dataset = self._read()
        # Version 1 had no checksum of its attributes.
        if self.version > 1 and not is_sealed(file, self._stored):
            problem = next(structure_errors(file, self._stored), CHANGED)
            raise self.error(f"is damaged: {problem}{CURE}")

    @cached_property
    def _stored(self) -> Mapping[str, h5py.Dataset]:
        return all_datasets(self._file)

    @property
    def nbytes(self) -> int:
        stored = without_checksums(self._stored)
        return sum(dataset.id.get_storage_size() for dataset in stored.values())

    def errors(self, read: Read = lambda nbytes: None) -> Iterator[str]:
        with name_damage(self._path, CURE):
            yield from checksum_errors(self._file, self._stored, read=read)

    def _read(self) -> Dataset:
        task = self.text("task")
        if task not in TASKS:
            raise self.error(f"has task {shown(task)}; known: {', '.join(TASKS)}. Prepare it again")
        kind = self.text("kind")
        splits, facts = KINDS.get(kind, OTHER).open(self)
        shape = facts.pop("shape", None) or self.shape
        reading = {}
        if self.has(READING):
            reading = json.loads(self.map(READING).tobytes())
        dataset = Dataset(
            splits=splits,
            task=task,
            shape=shape,
            outputs=self.outputs,
            classes=self.names("classes"),
            source=self.text("source"),
            kind=kind,
            reading=reading,
            **facts,
        )
        # Large datasets are verified when they are first read: to open 1 TB must take no hour.
        stored = without_checksums(self._stored)
        small = [path for path in stored if path.rpartition("/")[2] not in MAPPED]
        for error in checksum_errors(self._file, self._stored, paths=small):
            raise self.error(f"is damaged: {error}{CURE}")
        return dataset

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
        return self.whole("outputs")

    def has(self, name: str) -> bool:
        return dataset_at(self._file, name) is not None

    def names(self, path: str) -> tuple[str, ...] | None:
        if not self.has(path):
            return None
        return tuple(self._find(path).asstr()[()])

    def _find(self, name: str) -> h5py.Dataset:
        dataset = dataset_at(self._file, name)
        if dataset is None:
            raise self.error(f"has no dataset {name}; prepare it again")
        problem = find_misplaced(dataset, self._size)
        if problem:
            raise self.error(f"has {name}, which {problem}{CURE}")
        return dataset

    def map(self, name: str) -> np.memmap:
        dataset = self._find(name)
        # HDF5 would copy each row, and locks out other threads. A map shares pages between ranks.
        return np.memmap(self._path, dataset.dtype, "r", dataset.id.get_offset(), dataset.shape)

    def map_guarded(self, name: str) -> tuple[np.memmap, Guard | None]:
        x = self.map(name)
        expected = read_checksums(self._file, name)
        guard: Guard | None = None
        if expected is not None:
            guard = FirstRead(x, expected, self._path, name)
        return x, release_pages(x, guard)

    def attribute(self, name: str) -> Any:
        """Return an attribute, of whatever type it has in the file."""
        if name not in self._file.attrs:
            raise self.error(f"has no attribute {name}; prepare it again")
        return self._file.attrs[name]

    def whole(self, name: str) -> int:
        return int(self.attribute(name))

    def text(self, name: str) -> str:
        return str(plain(self.attribute(name)))

    def error(self, problem: str) -> DataError:
        return DataError(f"{self._path} {problem}.")


class FirstRead:
    """A function that verifies the checksum of a block of ``x`` before the block is first read."""

    def __init__(self, x: np.ndarray, expected: np.ndarray, path: Path, name: str):
        self._x = x.view(np.ndarray)
        self._expected = expected
        self._path = path
        self._name = name
        self._unread = np.ones(len(expected), bool)
        self._left = len(expected)

    def __call__(self, rows: np.ndarray, length: int | np.ndarray = 1) -> None:
        """Verify the blocks of ``length`` rows from each of ``rows`` on. Raises DataError if a
        block is damaged."""
        # Once all is verified, a batch must not pay for this.
        if not self._left:
            return
        touched = self._find_blocks(np.asarray(rows, np.int64), length)
        blocks = len(self._expected)
        for block in np.unique(touched[self._unread[touched]]).tolist():
            first = len(self._x) * block // blocks
            last = len(self._x) * (block + 1) // blocks
            if zlib.crc32(self._x[first:last].data) != self._expected[block]:
                raise DataError(
                    f"{self._path} is damaged: {differs(self._name, first, last)}{CURE}."
                )
            self._unread[block] = False
            self._left -= 1

    def _find_blocks(self, rows: np.ndarray, length: int | np.ndarray) -> np.ndarray:
        """Return the numbers of the blocks with ``length`` rows from each of ``rows`` on, some
        several times."""
        blocks = len(self._expected)
        # Block b has rows from count * b // blocks on, as `istmpi.data.writer` cuts them.
        first = ((rows + 1) * blocks - 1) // len(self._x)
        last = ((rows + length) * blocks - 1) // len(self._x)
        span = int((last - first).max(initial=0))
        return np.concatenate([np.minimum(first + more, last) for more in range(span + 1)])


KEPT = 2**31
"""The bytes above which a memory map's pages, which count as memory, are released
(`release_pages`)."""


def release_pages(x: np.memmap, guard: Guard | None) -> Guard | None:
    """Return ``guard``; for a map above `KEPT`, a function that first releases its pages and then
    calls ``guard``."""
    pages = x.base
    if x.nbytes <= KEPT or not isinstance(pages, mmap.mmap):
        return guard

    def release(rows: np.ndarray, length: int | np.ndarray = 1) -> None:
        # Pages that were read count as this rank's memory, and a batch system may end the job for
        # them.
        if hasattr(mmap, "MADV_DONTNEED"):
            pages.madvise(mmap.MADV_DONTNEED)
        if guard is not None:
            guard(rows, length)

    return release
