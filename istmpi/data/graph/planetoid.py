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
from collections.abc import Collection

import numpy as np

from istmpi.data.files.archive import Archive
from istmpi.data.files.pickles import PickleError, read_pickle
from istmpi.data.graph.raw import RawGraph, dense
from istmpi.errors import DataError
from istmpi.foreign import reading, whole_number

PARTS = ("allx", "ally", "tx", "ty", "y", "graph", "test.index")
VALIDATION = 500


def planetoid_name(names: Collection[str]) -> str:
    """What the files of a set begin with, ``FOLDER/ind.NAME.``; empty where they are none of Planetoid's."""
    return next((match[0] for name in names if (match := re.match(r"(?:.*/)?ind\.[^/]+?\.(?=allx$)", name))), "")


def read_planetoid(archive: Archive, prefix: str) -> RawGraph:
    """The graph of a set's files; DataError where they do not fit together."""
    if missing := [part for part in PARTS if prefix + part not in archive.names]:
        raise DataError(f"{archive.path} has no {prefix}{missing[0]}. Give all files of that set.")
    allx, ally, tx, ty, y, graph = (_pickle(archive, prefix + part) for part in PARTS[:-1])
    with reading(f"{archive.path}: {prefix}test.index cannot be read", "Give a number a line.", ValueError):
        _, content = next(iter(archive.read([prefix + PARTS[-1]])))
        index = np.array([whole_number(word) for word in content.decode().split()], np.int64)
    first, firsts = (_matrix(archive, prefix + part, of) for part, of in (("allx", allx), ("tx", tx)))
    classes = [_one_hot(archive, prefix + part, of) for part, of in (("ally", ally), ("ty", ty), ("y", y))]
    fits = len(first) == len(classes[0]) and len(firsts) == len(classes[1]) == len(index) == len(np.unique(index)) > 0
    described = len(first) + len(firsts)
    if fits and index.max() >= 2 * described:
        raise DataError(
            f"{archive.path}: {prefix}test.index has node {index.max()}, but the files have features of {described:,} "
            "nodes. Give all files of one set."
        )
    if not fits or first.shape[1] != firsts.shape[1] or index.min() < len(first) or len(classes[2]) > len(first):
        raise DataError(f"{archive.path}: the files {prefix}* do not fit together. Give all files of one set.")
    count = int(index.max()) + 1
    x, labels = np.zeros((count, first.shape[1]), np.float32), np.full(count, -1, np.int64)
    x[: len(first)], labels[: len(first)] = first, classes[0]
    x[index], labels[index] = firsts, classes[1]
    learnt = len(classes[2])
    validation = np.arange(learnt, min(learnt + VALIDATION, len(first)))
    splits = {"train": np.arange(learnt), "validation": validation, "test": np.sort(index)}
    return RawGraph(x, True, *_edges(archive, prefix + "graph", graph), labels, splits)


def _pickle(archive: Archive, name: str) -> object:
    with archive.open(name) as file:
        try:
            return read_pickle(file, numbers=True)
        except PickleError as error:
            raise DataError(
                f"{archive.path}: {name} is no pickle of Planetoid's: {error}. Download it again."
            ) from None


def _matrix(archive: Archive, name: str, value: object) -> np.ndarray:
    if isinstance(value, dict):
        shape = value.get("_shape", value.get("shape"))
        parts = [value.get(part) for part in ("indptr", "indices", "data")]
        if all(isinstance(part, np.ndarray) and part.ndim == 1 for part in parts) and _is_shape(shape):
            offsets, columns, values = parts
            rises = len(offsets) == shape[0] + 1 and offsets[0] == 0 and (np.diff(offsets.astype(np.int64)) >= 0).all()
            if (
                rises
                and offsets[-1] == len(columns) == len(values) > 0
                and 0 <= columns.min() <= columns.max() < shape[1]
            ):
                return dense(offsets.astype(np.int64), columns.astype(np.int64), values, shape)
    raise DataError(f"{archive.path}: {name} is no CSR matrix of scipy's. Download it again.")


def _is_shape(shape: object) -> bool:
    return isinstance(shape, tuple) and len(shape) == 2 and all(type(one) is int and 0 < one < 2**31 for one in shape)


def _one_hot(archive: Archive, name: str, value: object) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.ndim != 2 or not ((value == 0) | (value == 1)).all():
        raise DataError(f"{archive.path}: {name} is no matrix of classes, one-hot. Download it again.")
    return np.where(value.any(axis=1), value.argmax(axis=1), -1)


def _edges(archive: Archive, name: str, value: object) -> tuple[np.ndarray, np.ndarray]:
    lists = value if isinstance(value, dict) else {None: None}
    for node, heard in lists.items():
        if type(node) is not int or not isinstance(heard, list) or not all(type(one) is int for one in heard):
            raise DataError(f"{archive.path}: {name} is no dictionary of lists of nodes. Download it again.")
    counts = [len(heard) for heard in lists.values()]
    targets = np.repeat(np.array(list(lists), np.int64), counts)
    return np.array([one for heard in lists.values() for one in heard], np.int64), targets
