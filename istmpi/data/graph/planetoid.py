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
from istmpi.data.files.pickles import read_pickle
from istmpi.errors import DataError
from istmpi.foreign import reading, whole_number

PARTS = ("allx", "ally", "tx", "ty", "y", "graph", "test.index")
VALIDATION = 500


@dataclass(frozen=True)
class RawGraph:
    """A graph as its files have it: edges by the numbers of nodes, and the nodes of each split."""

    x: np.ndarray
    sparse: bool
    sources: np.ndarray
    targets: np.ndarray
    labels: np.ndarray
    splits: Mapping[str, np.ndarray]


def csr_of(parts: Mapping[str, object], name: str, where: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple]:
    """Return row and column of each element of compressed sparse rows, its value, and the shape; ``name`` is for an
    error.
    """
    offsets, columns, lengths = (np.asarray(parts.get(part)) for part in ("indptr", "indices", "shape"))
    values = np.asarray(parts.get("data", np.ones(columns.shape, np.float32)))
    whole = all(part.ndim == 1 and part.dtype.kind in "iu" for part in (offsets, columns, lengths))
    if not whole or len(lengths) != 2 or values.ndim != 1 or values.dtype.kind not in "fiub":
        raise DataError(
            f"{where}: {name}indptr, _indices and _shape must be lists of whole numbers, the last of two, and "
            f"{name}data one of numbers. Save them again."
        )
    shape, columns, offsets = (int(lengths[0]), int(lengths[1])), columns.astype(np.int64), offsets.astype(np.int64)
    rises = len(offsets) == shape[0] + 1 and offsets[0] == 0 and (np.diff(offsets) >= 0).all()
    fits = rises and offsets[-1] == len(columns) == len(values) and all(0 < length < 2**31 for length in shape)
    if not fits or columns.min(initial=0) < 0:
        raise DataError(f"{where}: {name}indptr, _indices and _shape do not fit together. Save them again.")
    return np.repeat(np.arange(shape[0]), np.diff(offsets)), columns, values, shape


def dense_of(parts: Mapping[str, object], name: str, where: str) -> np.ndarray:
    """Return compressed sparse rows as a float32 matrix; repeated elements are added."""
    rows, columns, values, shape = csr_of(parts, name, where)
    if columns.max(initial=-1) >= shape[1]:
        raise DataError(f"{where}: {name}indices has numbers that are not below {shape[1]}. Save it again.")
    x = np.zeros(shape, np.float32)
    np.add.at(x, (rows, columns), values.astype(np.float32))
    return x


def planetoid_name(names: Collection[str]) -> str:
    """Return the beginning of the names of a set's files, ``FOLDER/ind.NAME.``."""
    return next((match[0] for name in names if (match := re.match(r"(?:.*/)?ind\.[^/]+?\.(?=allx$)", name))), "")


def read_planetoid(archive: Archive, prefix: str) -> RawGraph:
    where, again = f"{archive.path}: {prefix}", "Download it again."
    if missing := [part for part in PARTS if prefix + part not in archive.names]:
        raise DataError(f"{archive.path} has no {prefix}{missing[0]}. Give all files of that set.")
    files = {name.removeprefix(prefix): content for name, content in archive.read([prefix + part for part in PARTS])}

    def pickled(part: str, kind: type) -> object:
        with reading(f"{where}{part} is no pickle of Planetoid's", again, ValueError):
            value = read_pickle(files[part])
            if not isinstance(value, kind):
                raise ValueError(f"it holds no {kind.__name__}")
            return value

    def matrix(part: str) -> np.ndarray:
        parts = pickled(part, dict)
        return dense_of({"shape": parts.get("_shape"), **parts}, "its ", where + part)

    def one_hot(part: str) -> np.ndarray:
        value = pickled(part, np.ndarray)
        if value.ndim != 2 or not ((value == 0) | (value == 1)).all():
            raise DataError(f"{where}{part} is no matrix of classes, one-hot. {again}")
        return np.where(value.any(axis=1), value.argmax(axis=1), -1)

    with reading(f"{where}test.index cannot be read", "Give a number a line.", ValueError):
        index = np.array([whole_number(word) for word in files["test.index"].decode().split()], np.int64)
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
    pairs = [(node, heard) for node, heard in pickled("graph", dict).items()]
    lists = all(type(node) is int and isinstance(heard, list) for node, heard in pairs)
    if not lists or not all(type(other) is int for _, heard in pairs for other in heard):
        raise DataError(f"{where}graph is no dictionary of lists of nodes. {again}")
    count = int(index.max()) + 1
    x, labels = np.zeros((count, others.shape[1]), np.float32), np.full(count, -1, np.int64)
    x[: len(others)], labels[: len(others)] = others, classes
    x[index], labels[index] = tested, tested_classes
    validation = np.arange(len(learnt), min(len(learnt) + VALIDATION, len(others)))
    splits = {"train": np.arange(len(learnt)), "validation": validation, "test": np.sort(index)}
    sources = np.array([other for _, heard in pairs for other in heard], np.int64)
    targets = np.repeat(np.array([node for node, _ in pairs], np.int64), [len(heard) for _, heard in pairs])
    return RawGraph(x, True, sources, targets, labels, splits)
