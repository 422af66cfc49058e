"""The prepared file: one HDF5 file that holds a data set ready to be memory-mapped.

    /                       attributes: format "istmpi-data", version 2, kind, source, task, outputs, skipped (files),
                            shape (of one example, channels first), train, test[, validation] (how many examples)
    /classes                names, UTF-8; absent for regression. (A dataset: an attribute ends at 64 KiB.)
    /SPLIT/x                (n, features) float32 or uint8; SPLIT is train, test and perhaps validation
    /SPLIT/y                (n) int64, or (n, outputs) float32 for regression
    /normalisation/mean     (features) float32, over the training split
    /normalisation/std      (features) float32, positive
    /checksums/PATH         CRC-32 of blocks of rows of about 64 KiB; istmpi/hdf5.py says how they guard the file

Every dataset is contiguous and little-endian. So the reader opens the file only to learn where the rows lie, closes it,
and leaves the rest to the memory map: no lock, no HDF5 call and no chunk cache on the training path. Everything but the
features is checked when the file is opened, a block of these when one of its rows is read for the first time. Files of
version 1 have no checksums.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import h5py
import numpy as np

from istmpi.data.dataset import SPLITS, Dataset, require_finite
from istmpi.data.guard import FirstRead, Running
from istmpi.data.kinds import split_of
from istmpi.data.moments import Moments
from istmpi.errors import ConfigError, DataError, OutputError
from istmpi.files import sync, temporary
from istmpi.foreign import reason
from istmpi.hdf5 import (
    CHANGED,
    CHECKSUM,
    CHECKSUMS,
    LOCKING,
    Read,
    checksum_errors,
    dataset_at,
    datasets,
    expected_checksums,
    misplaced,
    new_file,
    plain,
    seal,
    sealed,
    set_attribute,
    shown,
    structure_errors,
    unheard,
)
from istmpi.tasks import CLASSIFICATION, REGRESSION, TASKS

FORMAT = "istmpi-data"
VERSION = 2
READABLE = (1, 2)
SUFFIXES = (".h5", ".hdf5")

_ROOM = 2**20
"""Bytes for the structure of the file, and for what HDF5 keeps back of small pieces of four datasets, 64 KiB each."""

_TYPES = {"x": (np.dtype("<f4"), np.dtype("u1")), CLASSIFICATION: (np.dtype("<i8"),), REGRESSION: (np.dtype("<f4"),)}


@dataclass(frozen=True)
class Header:
    """What a prepared file says of its examples; ``dtype`` is that of x, ``groups`` as in ``Moments.normalisation``."""

    kind: str
    source: str
    task: str
    shape: tuple[int, ...]
    outputs: int
    classes: tuple[str, ...] | None
    counts: dict[str, int]
    dtype: np.dtype
    groups: int
    skipped: int = 0


class Writer:
    """A context in which blocks of examples become a prepared file, complete or not at all.

    It writes beside the target under a temporary name; a normal exit syncs and renames, any exception removes it.
    Memory is bounded by the largest block. Raises ConfigError where the target exists and is not to be replaced,
    OutputError where it cannot be written.
    """

    def __init__(self, target: str | os.PathLike, header: Header, force: bool = False):
        self.target = Path(target)
        check_target(self.target, force)
        self._header = header
        self._temporary = temporary(self.target)
        self._written = dict.fromkeys(header.counts, 0)
        self._moments = Moments(int(np.prod(header.shape)))
        self._running: dict[str, Running] = {}

    def __enter__(self) -> "Writer":
        try:
            with ExitStack() as stack:
                self._file = stack.enter_context(new_file(self._temporary, _ROOM))
                self._allocate()
                self._open = stack.pop_all()
        except OSError as error:
            self._temporary.unlink(missing_ok=True)
            raise OutputError(f"{self.target} cannot be written: {reason(error)}.") from error
        return self

    def append(self, split: str, x: np.ndarray, y: np.ndarray) -> None:
        """Write the next examples of a split: x [b, features] (not normalised) and y [b] or [b, outputs]."""
        start = self._written[split]
        require_finite(x, split, self._header.source, start)
        x = np.ascontiguousarray(x, self._header.dtype)
        y = np.ascontiguousarray(y, _TYPES[self._header.task][0])
        stop = self._written[split] = start + len(x)
        assert stop <= self._header.counts[split], f"{split}: more than {self._header.counts[split]} examples"
        try:
            for path, rows in ((f"{split}/x", x), (f"{split}/y", y)):
                self._file[path][start:stop] = rows
                self._running[path].add(rows)
        except OSError as error:
            raise OutputError(f"{self.target} cannot be written: {reason(error)}.") from error
        if split == "train":
            self._moments.add(x)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        try:
            with self._open:
                if error is None:
                    assert self._written == self._header.counts, (self._written, self._header.counts)
                    mean, std = self._moments.normalisation(self._header.groups)
                    self._whole("normalisation/mean", mean)
                    self._whole("normalisation/std", std)
                    self._seal()
            if error is None:
                sync(self._temporary)
                self._temporary.replace(self.target)
                sync(self.target.parent)
        except OSError as failure:
            raise OutputError(f"{self.target} cannot be written: {reason(failure)}.") from failure
        finally:
            self._temporary.unlink(missing_ok=True)

    def _allocate(self) -> None:
        header = self._header
        attributes = {"format": FORMAT, "version": VERSION, "kind": header.kind, "source": header.source}
        attributes |= {"task": header.task, "shape": header.shape, "outputs": header.outputs, "skipped": header.skipped}
        for name, value in (attributes | header.counts).items():
            set_attribute(self._file, name, value)
        if header.classes is not None:
            names = [name.encode() for name in header.classes]
            kind = h5py.string_dtype("utf-8", max(map(len, names)) or 1)
            self._whole("classes", np.array(names, kind))
        features = prod(header.shape)
        for split, count in header.counts.items():
            labels = (count,) if header.task == CLASSIFICATION else (count, header.outputs)
            self._dataset(f"{split}/x", (count, features), header.dtype)
            self._dataset(f"{split}/y", labels, _TYPES[header.task][0])

    def _dataset(self, path: str, shape: tuple[int, ...], dtype: np.dtype) -> h5py.Dataset:
        dataset = self._file.create_dataset(path, shape, dtype.newbyteorder("<"))
        self._running[path] = Running(shape[0], prod(shape[1:]) * dtype.itemsize)
        return dataset

    def _whole(self, path: str, values: np.ndarray) -> None:
        self._dataset(path, values.shape, values.dtype)[...] = values
        self._running[path].add(values)

    def _seal(self) -> None:
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


def open_prepared(path: str | os.PathLike) -> Dataset:
    """The data set of a prepared file, its rows memory-mapped; DataError in one line for anything else."""
    with prepared_file(path) as file:
        return file.dataset


@contextmanager
def prepared_file(path: str | os.PathLike) -> Iterator["PreparedFile"]:
    """Open a prepared file and check its structure; DataError in one line for anything that is none."""
    path = Path(path)
    with _reading(path):
        if not path.is_file() or not h5py.is_hdf5(path):
            raise DataError(f"{path} is not an HDF5 file. Make one with `istmpi prepare`.")
        file = h5py.File(path, "r", locking=LOCKING)
    with file:
        with _reading(path):
            prepared = PreparedFile(path, file)
        yield prepared


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever h5py and others raise where they meet what they did not expect into one line."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        damage = "truncated" if "truncated" in str(error) else f"damaged ({reason(error)})"
        raise DataError(f"{path} is {damage}; prepare or copy it again.") from error


class PreparedFile:
    """An open prepared file, checked against the format, one question after another, and mapped."""

    def __init__(self, path: Path, file: h5py.File):
        self._path, self._file = path, file
        self._size = path.stat().st_size
        self.version = self._version()
        """Of the format."""
        self.dataset = self._read()
        if self.version > 1 and not sealed(file):
            raise self._error(f"is damaged: {next(structure_errors(file), CHANGED)}; prepare or copy it again")

    @property
    def nbytes(self) -> int:
        """Of all contents, checksums left out."""
        return sum(dataset.id.get_storage_size() for dataset in datasets(self._file).values())

    def errors(self, read: Read = unheard) -> Iterator[str]:
        """What is wrong with the contents, one line each; ``read`` is told of bytes as they are read."""
        with _reading(self._path):
            yield from checksum_errors(self._file, read=read)

    def _version(self) -> int:
        if plain(self._attribute("format", "")) != FORMAT:
            raise self._error("is an HDF5 file, but not one of prepared data; make one with `istmpi prepare`")
        version = self._attribute("version")
        if version not in READABLE:
            known = " and ".join(map(str, READABLE))
            raise self._error(f"has version {shown(version)}; this istmpi reads versions {known}. Prepare it again")
        if (CHECKSUM in self._file.attrs) != (version > 1):
            of = "no attribute" if version == 1 else "an attribute"
            raise self._error(f"is damaged: its version is {version}, which has {of} {CHECKSUM}; prepare it again")
        return int(version)

    def _read(self) -> Dataset:
        task = self._text("task")
        if task not in TASKS:
            raise self._error(f"has task {shown(task)}; known: {', '.join(TASKS)}. Prepare it again")
        shape = tuple(int(length) for length in self._attribute("shape"))
        outputs = int(self._attribute("outputs"))
        features = prod(shape)
        classes = self._classes(outputs) if task == CLASSIFICATION else None
        mean = np.array(self._map("normalisation/mean", (features,), _TYPES["x"][:1]))
        std = np.array(self._map("normalisation/std", (features,), _TYPES["x"][:1]))
        if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
            raise self._error("has a mean or deviation that is not finite or not positive; prepare it again")
        splits, kind = {}, self._text("kind")
        for split in SPLITS:
            if split != "validation" or self._file.id.links.exists(split.encode()):
                x, y = self._split(split, features, task, outputs)
                splits[split] = split_of(kind, shape, x, y, (mean, std), self._guard(f"{split}/x", x))
        small = [path for path in datasets(self._file) if path.rpartition("/")[2] != "x"]
        for error in checksum_errors(self._file, paths=small):
            raise self._error(f"is damaged: {error}; prepare or copy it again")
        return Dataset(splits, task, shape, outputs, classes, self._text("source"), kind, mean, std)

    def _guard(self, name: str, x: np.ndarray) -> FirstRead | None:
        expected = expected_checksums(self._file, name)
        return None if expected is None else FirstRead(x, expected, self._path, name)

    def _split(self, split: str, features: int, task: str, outputs: int) -> tuple[np.ndarray, np.ndarray]:
        count = int(self._attribute(split))
        if count < 1:
            raise self._error(f"has {count} {split} examples; it needs at least one. Prepare it again")
        x = self._map(f"{split}/x", (count, features), _TYPES["x"])
        y = self._map(f"{split}/y", (count,) if task == CLASSIFICATION else (count, outputs), _TYPES[task])
        if task == CLASSIFICATION and (y.min() < 0 or y.max() >= outputs):
            bad = int(np.flatnonzero((y < 0) | (y >= outputs))[0])
            raise self._error(f"has label {y[bad]} at {split}/y[{bad}]; labels run from 0 to {outputs - 1}. Correct it")
        # A look at the first rows is cheap and finds what another program filled wrongly; all would be a full read.
        if x.dtype.kind == "f" and not np.isfinite(x[: max(1, 2**20 // features)]).all():
            raise self._error(f"has features in {split}/x that are not finite; remove or fill such examples first")
        return x, y

    def _classes(self, outputs: int) -> tuple[str, ...]:
        if (dataset := dataset_at(self._file, "classes")) is None:
            raise self._error("has no dataset classes; prepare it again")
        names = tuple(dataset.asstr()[()])
        if len(names) != outputs:
            raise self._error(f"names {len(names)} classes but has {outputs} outputs; prepare it again")
        return names

    def _map(self, name: str, shape: tuple[int, ...], dtypes: tuple[np.dtype, ...]) -> np.ndarray:
        """The dataset ``name`` as a read-only memory map, once its shape, type and place are as the format says."""
        if (dataset := dataset_at(self._file, name)) is None:
            raise self._error(f"has no dataset {name}; prepare it again")
        if dataset.shape != shape or dataset.dtype not in dtypes:
            expected = f"{shape} of {' or '.join(str(dtype) for dtype in dtypes)}"
            raise self._error(f"has {name} as {dataset.shape} of {dataset.dtype}, not {expected}; prepare it again")
        if problem := misplaced(dataset, self._size):
            raise self._error(f"has {name}, which {problem}; prepare or copy it again")
        return np.memmap(self._path, dataset.dtype, "r", dataset.id.get_offset(), shape)

    def _attribute(self, name: str, *default: object) -> object:
        if name not in self._file.attrs and not default:
            raise self._error(f"has no attribute {name}; prepare it again")
        return self._file.attrs.get(name, *default)

    def _text(self, name: str) -> str:
        return str(plain(self._attribute(name)))

    def _error(self, problem: str) -> DataError:
        return DataError(f"{self._path} {problem}.")
