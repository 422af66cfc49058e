"""The prepared file: one HDF5 file that holds a data set ready to be memory-mapped.

    /                       attributes: format "istmpi-data", version 2, kind, source, task, outputs, skipped (files),
                            shape (of one example, channels first), train, test[, validation] (how many examples)
    /classes                names, UTF-8; absent for regression. (A dataset: an attribute ends at 64 KiB.)
    /outputs                names of the numbers to predict, UTF-8, where they are known
    /SPLIT/x                (n, features) float32 or uint8; SPLIT is train, test and perhaps validation
    /SPLIT/y                (n) int64, or (n, outputs): float32 for regression, uint8 of 0 and 1 for dense-multi-label
    /normalisation/mean     (features) float32, over the training split
    /normalisation/std      (features) float32, positive
    /normalisation/offset   (features) float64 that x is less than in the source; target_offset (outputs): that y is;
                            absent where float32 does without
    /reading                conventions by which the source was read, as JSON in bytes; absent where there are none
    /checksums/PATH         CRC-32 of blocks of rows of about 64 KiB; istmpi/hdf5.py says how they guard the file

Text, task "next-token", has no shape and none of these datasets but the checksums, nor have sparse rows, task
"multi-label", and graphs; istmpi/data/text/file.py, sparse/file.py and graph/file.py say what they have. Every dataset
is contiguous and little-endian. So the reader opens the file only to learn where the rows lie, closes it, and leaves
the rest to the memory map: no lock, no HDF5 call and no chunk cache on the training path. Everything but the features,
tokens, or edges, is checked when the file is opened, a block of these when one of its rows is read for the first time.
Files of version 1 have no checksums.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from istmpi.data.dataset import SPLITS, Dataset, require_finite
from istmpi.data.graph.file import read_graph
from istmpi.data.guard import FirstRead, letting_go
from istmpi.data.kinds import split_of
from istmpi.data.moments import Moments, Normalisation
from istmpi.data.offsets import OFFSETS, Differences
from istmpi.data.sparse.file import LARGE, read_sparse
from istmpi.data.text.file import TOKENS, read_text
from istmpi.data.writer import FORMAT, READING, FileWriter
from istmpi.errors import DataError
from istmpi.foreign import reason
from istmpi.hdf5 import (
    CHANGED,
    CHECKSUM,
    LOCKING,
    Read,
    checksum_errors,
    dataset_at,
    datasets,
    expected_checksums,
    misplaced,
    names_array,
    plain,
    sealed,
    shown,
    structure_errors,
    unheard,
)
from istmpi.tasks import CLASSIFICATION, DENSE_LABELS, GRAPH_TASKS, MULTI_LABEL, NEXT_TOKEN, REGRESSION, TASKS

READABLE = (1, 2)
"""Versions of the format."""
MAPPED = ("x", TOKENS, *LARGE)
"""Datasets that may be large: checked block by block as they are read, all others when the file is opened."""

_TYPES = {"x": (np.dtype("<f4"), np.dtype("u1")), CLASSIFICATION: (np.dtype("<i8"),), REGRESSION: (np.dtype("<f4"),)}
_TYPES[DENSE_LABELS] = (np.dtype("u1"),)


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
    output_names: tuple[str, ...] | None = None


class Writer(FileWriter):
    """A context in which blocks of examples become a prepared file; NarrowError as of `Differences`."""

    def __init__(self, target: str | os.PathLike, header: Header, force: bool = False):
        attributes = {"kind": header.kind, "source": header.source, "task": header.task, "shape": header.shape}
        attributes |= {"outputs": header.outputs, "skipped": header.skipped}
        super().__init__(target, attributes, header.counts, force)
        self._header = header
        self._moments = Moments(prod(header.shape))
        targets = {"y": header.outputs} if header.task == REGRESSION else {}
        self.differences = Differences({"x": header.groups, **targets})

    def append(self, split: str, x: np.ndarray, y: np.ndarray) -> None:
        """Write the next examples of a split: x [b, features] (not normalised) and y [b] or [b, outputs]."""
        require_finite(x, split, self._header.source, self._running[f"{split}/x"].done)
        rows = self.differences.taken(split, {"x": x, "y": y})
        x = np.ascontiguousarray(rows["x"], self._header.dtype)
        self._append(split, {"x": x, "y": np.ascontiguousarray(rows["y"], _TYPES[self._header.task][0])})
        if split == "train":
            self._moments.add(x)

    def _allocate(self) -> None:
        header = self._header
        if header.classes is not None:
            self._whole("classes", names_array(header.classes))
        if header.output_names is not None:
            self._whole("outputs", names_array(header.output_names))
        for split, count in header.counts.items():
            labels = (count,) if header.task == CLASSIFICATION else (count, header.outputs)
            self._dataset(f"{split}/x", (count, prod(header.shape)), header.dtype)
            self._dataset(f"{split}/y", labels, _TYPES[header.task][0])

    def _finish(self) -> None:
        self.differences.require_kept()
        mean, std, _ = self._moments.normalisation(self._header.groups)
        self._whole("normalisation/mean", mean)
        self._whole("normalisation/std", std)
        for name, offset in self.differences.offsets.items():
            self._whole(OFFSETS[name], offset)
        super()._finish()


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
            raise self.error(f"is damaged: {next(structure_errors(file), CHANGED)}; prepare or copy it again")

    @property
    def nbytes(self) -> int:
        """Of all contents, checksums left out."""
        return sum(dataset.id.get_storage_size() for dataset in datasets(self._file).values())

    def errors(self, read: Read = unheard) -> Iterator[str]:
        """What is wrong with the contents, one line each; ``read`` is told of bytes as they are read."""
        with _reading(self._path):
            yield from checksum_errors(self._file, read=read)

    def _version(self) -> int:
        if plain(self.attribute("format", "")) != FORMAT:
            raise self.error("is an HDF5 file, but not one of prepared data; make one with `istmpi prepare`")
        version = self.attribute("version")
        if version not in READABLE:
            known = " and ".join(map(str, READABLE))
            raise self.error(f"has version {shown(version)}; this istmpi reads versions {known}. Prepare it again")
        if (CHECKSUM in self._file.attrs) != (version > 1):
            of = "no attribute" if version == 1 else "an attribute"
            raise self.error(f"is damaged: its version is {version}, which has {of} {CHECKSUM}; prepare it again")
        return int(version)

    def _read(self) -> Dataset:
        task = self.text("task")
        if task not in TASKS:
            raise self.error(f"has task {shown(task)}; known: {', '.join(TASKS)}. Prepare it again")
        readers = {NEXT_TOKEN: read_text, MULTI_LABEL: read_sparse, **dict.fromkeys(GRAPH_TASKS, read_graph)}
        dataset = readers[task](self) if task in readers else self._examples(task)
        dataset = replace(dataset, reading=self._conventions())
        small = [path for path in datasets(self._file) if path.rpartition("/")[2] not in MAPPED]
        for error in checksum_errors(self._file, paths=small):
            raise self.error(f"is damaged: {error}; prepare or copy it again")
        return dataset

    def _examples(self, task: str) -> Dataset:
        shape = tuple(int(length) for length in self.attribute("shape"))
        outputs = int(self.attribute("outputs"))
        features = prod(shape)
        classes = self.names("classes", outputs) if task == CLASSIFICATION else None
        known = task == REGRESSION and dataset_at(self._file, "outputs") is not None
        output_names = self.names("outputs", outputs) if known else None
        mean = np.array(self.mapped("normalisation/mean", (features,), _TYPES["x"][:1]))
        std = np.array(self.mapped("normalisation/std", (features,), _TYPES["x"][:1]))
        lengths = {"x": features, "y": outputs}
        offset, target_offset = (self._offset(OFFSETS[name], length) for name, length in lengths.items())
        numbers = [values for values in (mean, std, offset, target_offset) if values is not None]
        if not all(np.isfinite(values).all() for values in numbers) or (std <= 0).any():
            raise self.error("has a mean or deviation that is not finite or not positive; prepare it again")
        splits, kind = {}, self.text("kind")
        for split in self.splits:
            x, y = self._split(split, features, task, outputs)
            splits[split] = split_of(kind, shape, x, y, Normalisation(mean, std, offset), self.guard(f"{split}/x", x))
        more = {"output_names": output_names, "offset": offset, "target_offset": target_offset}
        return Dataset(splits, task, shape, outputs, classes, self.text("source"), kind, mean, std, **more)

    def _offset(self, path: str, length: int) -> np.ndarray | None:
        if dataset_at(self._file, path) is None:
            return None
        return np.array(self.mapped(path, (length,), (np.dtype("<f8"),)))

    def _conventions(self) -> dict[str, Any]:
        dataset = dataset_at(self._file, READING)
        return {} if dataset is None else json.loads(dataset[()].tobytes())

    @property
    def splits(self) -> list[str]:
        """The names of those that it has."""
        return [name for name in SPLITS if name != "validation" or self._file.id.links.exists(name.encode())]

    def guard(self, name: str, x: np.memmap) -> Callable[..., None] | None:
        """What is told of the rows of a dataset before they are read; None where nobody need be."""
        expected = expected_checksums(self._file, name)
        return letting_go(x, None if expected is None else FirstRead(x, expected, self._path, name))

    def _split(self, split: str, features: int, task: str, outputs: int) -> tuple[np.memmap, np.memmap]:
        count = int(self.attribute(split))
        if count < 1:
            raise self.error(f"has {count} {split} examples; it needs at least one. Prepare it again")
        x = self.mapped(f"{split}/x", (count, features), _TYPES["x"])
        y = self.mapped(f"{split}/y", (count,) if task == CLASSIFICATION else (count, outputs), _TYPES[task])
        largest = {CLASSIFICATION: outputs - 1, DENSE_LABELS: 1}.get(task)
        if largest is not None and (y.min() < 0 or y.max() > largest):
            bad = tuple(np.argwhere((y < 0) | (y > largest))[0].tolist())
            raise self.error(f"has label {y[bad]} at {split}/y{list(bad)}; labels run from 0 to {largest}. Correct it")
        # A look at the first rows is cheap and finds what another program filled wrongly; all would be a full read.
        if x.dtype.kind == "f" and not np.isfinite(x[: max(1, 2**20 // features)]).all():
            raise self.error(f"has features in {split}/x that are not finite; remove or fill such examples first")
        return x, y

    def names(self, path: str, outputs: int) -> tuple[str, ...]:
        """The names of so many classes, or of other outputs."""
        if (dataset := dataset_at(self._file, path)) is None:
            raise self.error(f"has no dataset {path}; prepare it again")
        names = tuple(dataset.asstr()[()])
        if len(names) != outputs:
            raise self.error(f"names {len(names)} {path} but has {outputs} outputs; prepare it again")
        return names

    def mapped(self, name: str, shape: tuple[int, ...], dtypes: tuple[np.dtype, ...]) -> np.memmap:
        """The dataset ``name`` as a read-only memory map, once its shape, type and place are as the format says."""
        if (dataset := dataset_at(self._file, name)) is None:
            raise self.error(f"has no dataset {name}; prepare it again")
        if dataset.shape != shape or dataset.dtype not in dtypes:
            expected = f"{shape} of {' or '.join(str(dtype) for dtype in dtypes)}"
            raise self.error(f"has {name} as {dataset.shape} of {dataset.dtype}, not {expected}; prepare it again")
        if problem := misplaced(dataset, self._size):
            raise self.error(f"has {name}, which {problem}; prepare or copy it again")
        return np.memmap(self._path, dataset.dtype, "r", dataset.id.get_offset(), shape)

    def attribute(self, name: str, *default: object) -> object:
        """An attribute of the file; DataError where there is none and no default."""
        if name not in self._file.attrs and not default:
            raise self.error(f"has no attribute {name}; prepare it again")
        return self._file.attrs.get(name, *default)

    def text(self, name: str) -> str:
        """An attribute that is a text."""
        return str(plain(self.attribute(name)))

    def error(self, problem: str) -> DataError:
        """The error for a file that has a problem."""
        return DataError(f"{self._path} {problem}.")
