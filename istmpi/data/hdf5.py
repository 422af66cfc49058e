"""The prepared file: one HDF5 file that holds a data set ready to be memory-mapped.

    /                       attributes: format "istmpi-data", version 1, kind, source, task, outputs, skipped (files),
                            shape (of one example, channels first), train, test[, validation] (how many examples)
    /classes                names, UTF-8; absent for regression. (A dataset: an attribute ends at 64 KiB.)
    /SPLIT/x                (n, features) float32 or uint8; SPLIT is train, test and perhaps validation
    /SPLIT/y                (n) int64, or (n, outputs) float32 for regression
    /normalisation/mean     (features) float32, over the training split
    /normalisation/std      (features) float32, positive

Every dataset is contiguous and little-endian. So the reader opens the file only to learn where the rows lie, closes it,
and leaves the rest to the memory map: no lock, no HDF5 call and no chunk cache on the training path.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from istmpi.data.dataset import CLASSIFICATION, REGRESSION, SPLITS, TASKS, Dataset, Split, require_finite
from istmpi.data.moments import Moments
from istmpi.errors import ConfigError, DataError, OutputError

FORMAT = "istmpi-data"
VERSION = 1
SUFFIXES = (".h5", ".hdf5")

# Cluster file systems often have no locks, and nothing here needs one: a file appears under its name once, complete.
_LOCKING = False

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
        self._temporary = self.target.with_name(f".{self.target.name}.{os.getpid()}.tmp")
        self._written = dict.fromkeys(header.counts, 0)
        self._moments = Moments(int(np.prod(header.shape)))

    def __enter__(self) -> "Writer":
        try:
            self._file = h5py.File(self._temporary, "w", locking=_LOCKING)
            self._allocate()
        except OSError as error:
            self._temporary.unlink(missing_ok=True)
            raise OutputError(f"{self.target} cannot be written: {reason(error)}.") from error
        return self

    def append(self, split: str, x: np.ndarray, y: np.ndarray) -> None:
        """Write the next examples of a split: x [b, features] (not normalised) and y [b] or [b, outputs]."""
        start = self._written[split]
        require_finite(x, split, self._header.source, start)
        stop = self._written[split] = start + len(x)
        group = self._file[split]
        assert stop <= len(group["x"]), f"{split}: more than the {len(group['x'])} examples announced"
        try:
            group["x"][start:stop] = x
            group["y"][start:stop] = y
        except OSError as error:
            raise OutputError(f"{self.target} cannot be written: {reason(error)}.") from error
        if split == "train":
            self._moments.add(x)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                assert self._written == self._header.counts, (self._written, self._header.counts)
                mean, std = self._moments.normalisation(self._header.groups)
                self._file["normalisation/mean"] = mean
                self._file["normalisation/std"] = std
            self._file.close()
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
        attributes = self._file.attrs
        attributes.update(format=FORMAT, version=VERSION, kind=header.kind, source=header.source, task=header.task)
        attributes.update(shape=header.shape, outputs=header.outputs, skipped=header.skipped, **header.counts)
        if header.classes is not None:
            self._file.create_dataset("classes", data=header.classes, dtype=h5py.string_dtype())
        for split, count in header.counts.items():
            labels = (count,) if header.task == CLASSIFICATION else (count, header.outputs)
            features = int(np.prod(header.shape))
            self._file.create_dataset(f"{split}/x", (count, features), header.dtype.newbyteorder("<"))
            self._file.create_dataset(f"{split}/y", labels, _TYPES[header.task][0])


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
    path = Path(path)
    try:
        if not h5py.is_hdf5(path):
            raise DataError(f"{path} is not an HDF5 file. Make one with `istmpi prepare`.")
        with h5py.File(path, "r", locking=_LOCKING) as file:
            return _Reader(path, file).dataset()
    except DataError:
        raise
    except (OSError, RuntimeError, LookupError, TypeError, ValueError) as error:  # as h5py meets what it did not expect
        damage = "truncated" if "truncated" in str(error) else f"damaged ({reason(error)})"
        raise DataError(f"{path} is {damage}; prepare or copy it again.") from error


class _Reader:
    """Checks a file against the format, one question after another, and maps it."""

    def __init__(self, path: Path, file: h5py.File):
        self._path, self._file = path, file
        self._size = path.stat().st_size

    def dataset(self) -> Dataset:
        if _text(self._attribute("format", "")) != FORMAT:
            raise self._error("is an HDF5 file, but not one of prepared data; make one with `istmpi prepare`")
        if (version := int(self._attribute("version"))) != VERSION:
            raise self._error(f"has version {version}; this istmpi reads version {VERSION}. Prepare it again")
        task = _text(self._attribute("task"))
        if task not in TASKS:
            raise self._error(f"has task {task!r}; known: {', '.join(TASKS)}. Prepare it again")
        shape = tuple(int(length) for length in self._attribute("shape"))
        outputs = int(self._attribute("outputs"))
        features = int(np.prod(shape))
        classes = self._classes(outputs) if task == CLASSIFICATION else None
        mean = np.array(self._map("normalisation/mean", (features,), _TYPES["x"][:1]))
        std = np.array(self._map("normalisation/std", (features,), _TYPES["x"][:1]))
        if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
            raise self._error("has a mean or deviation that is not finite or not positive; prepare it again")
        splits = {}
        for split in SPLITS:
            if split in self._file or split != "validation":
                x, y = self._split(split, features, task, outputs)
                splits[split] = Split(x, y, mean, std)
        source = _text(self._attribute("source"))
        return Dataset(splits, task, shape, outputs, classes, source, _text(self._attribute("kind")), mean, std)

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
        if "classes" not in self._file:
            raise self._error("has no dataset classes; prepare it again")
        names = tuple(self._file["classes"].asstr()[()])
        if len(names) != outputs:
            raise self._error(f"names {len(names)} classes but has {outputs} outputs; prepare it again")
        return names

    def _map(self, name: str, shape: tuple[int, ...], dtypes: tuple[np.dtype, ...]) -> np.ndarray:
        """The dataset ``name`` as a read-only memory map, once its shape, type and place are as the format says."""
        dataset = self._file.get(name)
        if not isinstance(dataset, h5py.Dataset):
            raise self._error(f"has no dataset {name}; prepare it again")
        if dataset.shape != shape or dataset.dtype not in dtypes:
            expected = f"{shape} of {' or '.join(str(dtype) for dtype in dtypes)}"
            raise self._error(f"has {name} as {dataset.shape} of {dataset.dtype}, not {expected}; prepare it again")
        offset = dataset.id.get_offset()
        if offset is None or offset + dataset.size * dataset.dtype.itemsize > self._size:
            raise self._error(f"does not hold {name} as one contiguous block; prepare or copy it again")
        return np.memmap(self._path, dataset.dtype, "r", offset, shape)

    def _attribute(self, name: str, *default: object) -> object:
        if name not in self._file.attrs and not default:
            raise self._error(f"has no attribute {name}; prepare it again")
        return self._file.attrs.get(name, *default)

    def _error(self, problem: str) -> DataError:
        return DataError(f"{self._path} {problem}.")


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def reason(error: Exception) -> str:
    """The system's words where there are any: HDF5's own run over several clauses."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else (str(error).splitlines() or [type(error).__name__])[0]


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
