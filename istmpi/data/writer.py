"""A prepared file on its way to the disk: it appears whole, every dataset of it guarded by checksums, or not at all."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from istmpi.data.guard import Running
from istmpi.errors import ConfigError, OutputError
from istmpi.files import sync, temporary
from istmpi.foreign import reason
from istmpi.hdf5 import CHECKSUMS, new_file, seal, set_attribute

if TYPE_CHECKING:
    import h5py

FORMAT = "istmpi-data"
VERSION = 2
SUFFIXES = (".h5", ".hdf5")
READING = "reading"
"""The dataset of conventions by which the source was read: JSON as UTF-8 bytes."""

_ROOM = 2**20
"""Bytes for the structure of the file, and for what HDF5 keeps back of small pieces of four datasets, 64 KiB each."""


class FileWriter(ABC):
    """A context in which rows become a prepared file with these ``attributes``, complete or not at all.

    It writes beside the target under a temporary name; a normal exit syncs and renames, any exception removes it.
    Memory is bounded by the largest block. Raises ConfigError where the target exists and is not to be replaced,
    OutputError where it cannot be written.
    """

    def __init__(
        self,
        target: str | os.PathLike,
        attributes: Mapping[str, str | int | tuple[int, ...]],
        counts: Mapping[str, int],
        force: bool,
    ):
        self.target = Path(target)
        check_target(self.target, force)
        self._attributes = {"format": FORMAT, "version": VERSION, **attributes, **counts}
        self._counts = dict(counts)
        self._temporary = temporary(self.target)
        self._running: dict[str, Running] = {}
        self.reading: Mapping[str, Any] = {}
        """Conventions by which the source was read, of JSON's types; set before the context is entered."""

    def __enter__(self):
        try:
            with ExitStack() as stack:
                self._file = stack.enter_context(new_file(self._temporary, _ROOM))
                for name, value in self._attributes.items():
                    set_attribute(self._file, name, value)
                self._allocate()
                if self.reading:
                    self._whole(READING, np.frombuffer(json.dumps(self.reading).encode(), np.uint8))
                self._open = stack.pop_all()
        except OSError as error:
            self._temporary.unlink(missing_ok=True)
            raise OutputError(f"{self.target} cannot be written: {reason(error)}.") from error
        return self

    @abstractmethod
    def _allocate(self) -> None:
        """Create all datasets, and fill those that are known beforehand."""

    def _append(self, split: str, rows: Mapping[str, np.ndarray]) -> None:
        """Write the next rows, as they go into the file, of each of these datasets of a split."""
        try:
            for name, values in rows.items():
                running = self._running[f"{split}/{name}"]
                stop = running.done + len(values)
                assert stop <= running.rows, f"{split}/{name}: more than {running.rows} rows"
                self._file[f"{split}/{name}"][running.done : stop] = values
                running.add(values)
        except OSError as error:
            raise OutputError(f"{self.target} cannot be written: {reason(error)}.") from error

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        try:
            with self._open:
                if error is None:
                    self._finish()
                    assert all(running.done == running.rows for running in self._running.values())
            if error is None:
                sync(self._temporary)
                self._temporary.replace(self.target)
                sync(self.target.parent)
        except OSError as failure:
            raise OutputError(f"{self.target} cannot be written: {reason(failure)}.") from failure
        finally:
            self._temporary.unlink(missing_ok=True)

    def _dataset(self, path: str, shape: tuple[int, ...], dtype: np.dtype) -> h5py.Dataset:
        dataset = self._file.create_dataset(path, shape, dtype.newbyteorder("<"))
        self._running[path] = Running(shape[0], prod(shape[1:]) * dtype.itemsize)
        return dataset

    def _whole(self, path: str, values: np.ndarray) -> None:
        self._dataset(path, values.shape, values.dtype)[...] = values
        self._running[path].add(values)

    def _finish(self) -> None:
        checksums = {CHECKSUMS + path: running.checksums for path, running in self._running.items()}
        for path, values in checksums.items():
            self._file.create_dataset(path, data=values)
        seal(self._file, checksums)


def check_target(target: Path, force: bool) -> None:
    """Raise ConfigError for a name that is taken or wrong, OutputError for a folder that cannot be written to."""
    if target.suffix not in SUFFIXES:
        raise ConfigError(
            f"{target} is no name for a prepared file; training knows those by .h5. Call it {target.name}.h5."
        )
    if target.is_dir() or (target.exists() and not force):
        raise ConfigError(f"{target} exists; a file is replaced only with --force. Or choose another name.")
    if not target.parent.is_dir():
        raise OutputError(f"{target} cannot be written: there is no folder {target.parent}. Create it first.")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(f"{target} cannot be written: {target.parent} is not writable. Choose another folder.")
