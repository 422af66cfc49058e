"""Reads the pickles of a Planetoid set: Cora, CiteSeer or PubMed (Yang, Cohen and Salakhutdinov
2016)."""

import re
from collections.abc import Collection
from typing import TypeVar

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.graph.arrays import Csr, RawGraph
from istmpi.data.pickles import read_pickle
from istmpi.errors import DataError
from istmpi.foreign import reading, whole_number

PARTS = ("allx", "ally", "tx", "ty", "y", "graph", "test.index")
VALIDATION = 500
"""The number of validation nodes, which follow those of training."""
_AGAIN = "Download it again."
_FIRST = re.compile(r"(?:.*/)?ind\.[^/]+?\.(?=allx$)")
Kind = TypeVar("Kind")


def find_planetoid(names: Collection[str]) -> str:
    """Return what the names of a set's files begin with, such as ``ind.cora.``; "" for no set."""
    for name in names:
        match = _FIRST.match(name)
        if match:
            return match[0]
    return ""


def read_planetoid(archive: Archive, prefix: str) -> RawGraph:
    missing = [part for part in PARTS if prefix + part not in archive.names]
    if missing:
        raise DataError(f"{archive.path} has no {prefix}{missing[0]}. Give all files of that set.")
    files = _Files(archive, prefix)
    tested_nodes = files.read_test_nodes()
    others = files.read_matrix("allx")
    tested = files.read_matrix("tx")
    classes = files.read_classes("ally")
    tested_classes = files.read_classes("ty")
    # The nodes of y, those of training, are the first of ally.
    count = len(files.read_classes("y"))
    fits = (
        len(others) == len(classes)
        and len(tested) == len(tested_classes) == len(tested_nodes)
        and _follow(tested_nodes, len(others))
    )
    if not fits or others.shape[1] != tested.shape[1] or count > len(others):
        raise DataError(
            f"{archive.path}: the files {prefix}* do not fit together. Give all files of the same "
            "set."
        )
    sources, targets = files.read_edges()
    # CiteSeer's test nodes have gaps: nodes without features, classes or edges.
    nodes = int(tested_nodes.max()) + 1
    x = np.zeros((nodes, others.shape[1]), np.float32)
    x[: len(others)] = others
    x[tested_nodes] = tested
    labels = np.full(nodes, -1, np.int64)
    labels[: len(others)] = classes
    labels[tested_nodes] = tested_classes
    splits = {
        "train": np.arange(count),
        "validation": np.arange(count, min(count + VALIDATION, len(others))),
        "test": np.sort(tested_nodes),
    }
    return RawGraph(
        x=x, sparse=True, sources=sources, targets=targets, labels=labels, splits=splits
    )


def _follow(nodes: np.ndarray, others: int) -> bool:
    """Return True if node numbers differ, and come after the ``others`` without wide gaps."""
    if not len(nodes) or len(np.unique(nodes)) < len(nodes):
        return False
    # A damaged number could otherwise ask for any amount of memory.
    return bool(others <= nodes.min() and nodes.max() < 2 * (others + len(nodes)))


class _Files:
    """The files of a set; its methods raise DataError for damage or other content."""

    def __init__(self, archive: Archive, prefix: str):
        self._where = f"{archive.path}: {prefix}"
        self._contents = {}
        for name, content in archive.read([prefix + part for part in PARTS]):
            self._contents[name.removeprefix(prefix)] = content

    def read_test_nodes(self) -> np.ndarray:
        with reading(
            f"{self._where}test.index cannot be read", "Give one number per line.", ValueError
        ):
            words = self._contents["test.index"].decode().split()
            return np.array([whole_number(word) for word in words], np.int64)

    def read_matrix(self, part: str) -> np.ndarray:
        arrays = self._read(part, dict)
        arrays = {"shape": arrays.get("_shape"), **arrays}
        return Csr.from_arrays(arrays, "its ", self._where + part).to_dense()

    def read_classes(self, part: str) -> np.ndarray:
        """Return the class of each row of a one-hot matrix; -1 for a row of zeros."""
        values = self._read(part, np.ndarray)
        if values.ndim != 2 or not ((values == 0) | (values == 1)).all():
            raise DataError(f"{self._where}{part} is not a one-hot matrix of classes. {_AGAIN}")
        return np.where(values.any(axis=1), values.argmax(axis=1), -1)

    def read_edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and the target of each edge."""
        edges: list[tuple[int, int]] = []
        for node, neighbours in self._read("graph", dict).items():
            is_list = isinstance(neighbours, list)
            # A bool is an int to Python.
            if not is_list or any(type(end) is not int for end in (node, *neighbours)):
                raise DataError(f"{self._where}graph is not a dictionary of node lists. {_AGAIN}")
            # A node receives from its neighbours.
            edges += [(neighbour, node) for neighbour in neighbours]
        sources, targets = np.array(edges, np.int64).reshape(-1, 2).T
        return sources, targets

    def _read(self, part: str, kind: type[Kind]) -> Kind:
        with reading(f"{self._where}{part} is not a Planetoid pickle", _AGAIN, ValueError):
            return read_pickle(self._contents[part], kind)
