"""Planetoid's files (Yang, Cohen and Salakhutdinov 2016): Cora, Citeseer, Pubmed and others of their layout.

    ind.NAME.allx   features of all nodes but those for testing, CSR; .ally their classes, one-hot
    ind.NAME.tx     features of the nodes for testing, .ty their classes, in the order of .test.index, their numbers
    ind.NAME.x      features of the nodes to learn from, which come first in allx
    ind.NAME.graph  for each node the list of its neighbours

All but the index are pickles of Python 2, read by `istmpi.data.files.pickles`, which runs nothing. The 500 nodes
behind those to learn from are for validation, as in the papers. A number that is missing in the index, between others,
is a node without features and class.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from istmpi.data.files.archive import Archive
from istmpi.data.files.pickles import PickleError, read_pickle
from istmpi.data.sparse.split import is_csr
from istmpi.errors import DataError
from istmpi.foreign import reading, whole_number

PARTS = ("allx", "ally", "tx", "ty", "y", "graph", "test.index")
VALIDATION = 500


@dataclass(frozen=True)
class RawGraph:
    """A graph as its files have it: edges by the numbers of nodes, and the nodes of each split."""

    x: np.ndarray
    sparse: bool
    """The features came as a sparse matrix."""
    sources: np.ndarray
    targets: np.ndarray
    labels: np.ndarray
    splits: Mapping[str, np.ndarray]


def dense(offsets: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return compressed sparse rows as float32, or float64 where that rounds; repeated elements are added."""
    rounded = values.astype(np.float32)
    exact = (rounded == values).all()
    x = np.zeros(shape, np.float32 if exact else np.float64)
    np.add.at(x, (np.repeat(np.arange(shape[0]), np.diff(offsets)), columns), rounded if exact else values)
    return x


def planetoid_name(names: Collection[str]) -> str:
    """Return the beginning of the names of a set's files, ``FOLDER/ind.NAME.``."""
    return next((match[0] for name in names if (match := re.match(r"(?:.*/)?ind\.[^/]+?\.(?=allx$)", name))), "")


def read_planetoid(archive: Archive, prefix: str) -> RawGraph:
    where, again = f"{archive.path}: {prefix}", "Download it again."
    if missing := [part for part in PARTS if prefix + part not in archive.names]:
        raise DataError(f"{archive.path} has no {prefix}{missing[0]}. Give all files of that set.")

    def pickled(part: str) -> object:
        with archive.open(prefix + part) as file:
            try:
                return read_pickle(file, numbers=True)
            except PickleError as error:
                raise DataError(f"{where}{part} is no pickle of Planetoid's: {error}. {again}") from None

    def matrix(part: str) -> np.ndarray:
        if (x := _dense_of(pickles[part])) is None:
            raise DataError(f"{where}{part} is no CSR matrix of scipy's. {again}")
        return x

    def one_hot(part: str) -> np.ndarray:
        value = pickles[part]
        if not isinstance(value, np.ndarray) or value.ndim != 2 or not ((value == 0) | (value == 1)).all():
            raise DataError(f"{where}{part} is no matrix of classes, one-hot. {again}")
        return np.where(value.any(axis=1), value.argmax(axis=1), -1)

    pickles = {part: pickled(part) for part in PARTS[:-1]}
    with reading(f"{where}test.index cannot be read", "Give a number a line.", ValueError):
        _, content = next(iter(archive.read([prefix + PARTS[-1]])))
        index = np.array([whole_number(word) for word in content.decode().split()], np.int64)
    others, tested = map(matrix, ("allx", "tx"))
    classes, tested_classes, learnt = map(one_hot, ("ally", "ty", "y"))
    fits = len(others) == len(classes) and len(tested) == len(tested_classes) == len(index) == len(np.unique(index)) > 0
    described = len(others) + len(tested)
    if fits and index.max() >= 2 * described:
        raise DataError(
            f"{where}test.index has node {index.max()}, but the files have features of {described:,} nodes. Give all "
            "files of one set."
        )
    if not fits or others.shape[1] != tested.shape[1] or index.min() < len(others) or len(learnt) > len(others):
        raise DataError(f"{archive.path}: the files {prefix}* do not fit together. Give all files of one set.")
    lists = pickles["graph"] if isinstance(pickles["graph"], dict) else {None: None}
    for node, heard in lists.items():
        if type(node) is not int or not isinstance(heard, list) or not all(type(other) is int for other in heard):
            raise DataError(f"{where}graph is no dictionary of lists of nodes. {again}")
    count = int(index.max()) + 1
    x, labels = np.zeros((count, others.shape[1]), np.float32), np.full(count, -1, np.int64)
    x[: len(others)], labels[: len(others)] = others, classes
    x[index], labels[index] = tested, tested_classes
    validation = np.arange(len(learnt), min(len(learnt) + VALIDATION, len(others)))
    splits = {"train": np.arange(len(learnt)), "validation": validation, "test": np.sort(index)}
    sources = np.array([other for heard in lists.values() for other in heard], np.int64)
    targets = np.repeat(np.array(list(lists), np.int64), [len(heard) for heard in lists.values()])
    return RawGraph(x, True, sources, targets, labels, splits)


def _dense_of(value: object) -> np.ndarray | None:
    if not isinstance(value, dict):
        return None
    shape = value.get("_shape", value.get("shape"))
    parts = [value.get(part) for part in ("indptr", "indices", "data")]
    if not all(isinstance(part, np.ndarray) and part.ndim == 1 for part in parts):
        return None
    if not isinstance(shape, tuple) or len(shape) != 2:
        return None
    offsets, columns, values = parts[0], parts[1].astype(np.int64), parts[2]
    if not all(type(length) is int for length in shape) or not is_csr(offsets, columns, values, shape):
        return None
    if not 0 <= columns.min(initial=0) <= columns.max(initial=-1) < shape[1]:
        return None
    return dense(offsets.astype(np.int64), columns, values, shape)
