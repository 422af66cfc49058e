"""The writer of prepared files: a file appears whole, every dataset of it guarded by checksums, or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.data.guard import Running
from istmpi.errors import ConfigError, OutputError
from istmpi.files import sync, temporary
from istmpi.foreign import reason
from istmpi.hdf5 import CHECKSUMS, new_file, seal, set_attribute

FORMAT = "istmpi-data"
VERSION = 2
SUFFIXES = (".h5", ".hdf5")
READING = "reading"
_ROOM = 2**20
"""Bytes for the structure of the file, and for what HDF5 keeps back of small pieces of four datasets, 64 KiB each."""


class FileWriter:
    """A context in which blocks become a prepared file, complete or not at all.

    It writes beside the target under a temporary name; a normal exit syncs and renames, any exception removes it.
    """

    def __init__(self, target: str | os.PathLike, material: Material, force: bool = False):
        self.target, self._material = Path(target), material
        check_target(self.target, force)
        self._temporary = temporary(self.target)
        self._running: dict[str, Running] = {}
        self.reading: Mapping[str, Any] = {}
        """Conventions by which the source was read, of JSON's types; set before the context is entered."""

    def __enter__(self):
        material = self._material
        attributes = {"format": FORMAT, "version": VERSION, "kind": material.kind, "source": material.source}
        attributes |= {"task": material.task, "outputs": material.outputs, "skipped": len(material.skipped)}
        try:
            with self._writing(), ExitStack() as stack:
                self._file = stack.enter_context(new_file(self._temporary, _ROOM))
                for name, value in {**attributes, **material.attributes, **material.counts}.items():
                    set_attribute(self._file, name, value)
                for path, values in material.fixed.items():
                    self._whole(path, values)
                for path, (shape, dtype) in material.datasets.items():
                    self._dataset(path, shape, dtype)
                if self.reading:
                    self._whole(READING, np.frombuffer(json.dumps(self.reading).encode(), np.uint8))
                self._open = stack.pop_all()
        except OutputError:
            self._temporary.unlink(missing_ok=True)
            raise
        return self

    def append(self, split: str, **rows: np.ndarray) -> None:
        """Write the next rows of each of these datasets of a split."""
        with self._writing():
            for name, values in rows.items():
                dataset, running = self._file[f"{split}/{name}"], self._running[f"{split}/{name}"]
                values = np.ascontiguousarray(values, dataset.dtype)
                stop = running.done + len(values)
                assert stop <= running.rows, f"{split}/{name}: more than {running.rows} rows"
                dataset[running.done : stop] = values
                running.add(values)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        try:
            with self._writing():
                with self._open:
                    if error is None:
                        self._finish()
                        assert all(running.done == running.rows for running in self._running.values())
                if error is None:
                    sync(self._temporary)
                    self._temporary.replace(self.target)
                    sync(self.target.parent)
        finally:
            self._temporary.unlink(missing_ok=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(f"{self.target} cannot be written: {reason(error)}.") from error

    def _dataset(self, path: str, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        self._running[path] = Running(shape[0], prod(shape[1:]) * dtype.itemsize)
        return self._file.create_dataset(path, shape, dtype.newbyteorder("<"))

    def _whole(self, path: str, values: np.ndarray) -> None:
        self._dataset(path, values.shape, values.dtype)[...] = values
        self._running[path].add(values)

    def _finish(self) -> None:
        checksums = {CHECKSUMS + path: running.checksums for path, running in self._running.items()}
        for path, values in checksums.items():
            self._file.create_dataset(path, data=values)
        seal(self._file, checksums)


@dataclass(frozen=True)
class Material:
    """Data on their way into a prepared file: the facts that are known beforehand, and the data in blocks, once."""

    kind: str
    source: str
    task: str
    shape: tuple[int, ...]
    """The shape of an example, channels first."""
    outputs: int
    classes: tuple[str, ...] | None
    counts: Mapping[str, int]
    """The number of examples, tokens, rows or nodes of each split."""
    attributes: Mapping[str, Any]
    fixed: Mapping[str, np.ndarray]
    """Datasets that are known beforehand."""
    datasets: Mapping[str, tuple[tuple[int, ...], np.dtype]] = field(default_factory=dict)
    """Datasets that the blocks fill."""
    blocks: Iterable[tuple] = ()
    """A split and the arguments of the writer's ``append``."""
    writes: Callable[..., FileWriter] = FileWriter
    skipped: Sequence[str] = ()
    """Files that could not be read."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the report of a preparation has beside the common ones."""
    groups: int = 1
    """The means and deviations that normalise numbers (see ``Moments.normalisation``)."""


def check_target(target: Path, force: bool) -> None:
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
