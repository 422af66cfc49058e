"""Reads the files of a graph: arrays or tables of numbers (docs/data.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.dataset import WORDS
from istmpi.data.dense.arrays import load_arrays
from istmpi.errors import DataError
from istmpi.foreign import reading

EDGES = ("edge_index", "edge")
FEATURES = ("x", "node_feat", "attr_matrix")
LABELS = ("labels", "y", "node_label")
TABLES = (".csv", ".csv.gz")
_SPLITS = tuple(name for names in WORDS.values() for name in names)
_Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class RawGraph:
    """A graph as its files state it: features ``x`` [nodes, features], and ``labels`` [nodes] or
    [nodes, labels].

    ``sparse``: True if x is a sparse matrix in the files. Edge i goes from node ``sources[i]`` to
    ``targets[i]``.
    """

    x: np.ndarray
    sparse: bool
    sources: np.ndarray
    targets: np.ndarray
    labels: np.ndarray
    splits: Mapping[str, np.ndarray]


def read_arrays(archive: Archive) -> RawGraph:
    arrays = _load_arrays(archive)
    source = str(archive.path)
    labels = _find_array(arrays, LABELS, "labels", source)
    # A matrix of labels is a flag for each label of a node, as in ogbn-proteins.
    if labels.ndim not in (1, 2) or not labels.size:
        raise DataError(
            f"{source}: its labels have the shape {labels.shape}; give [nodes] or [nodes, labels]."
        )
    sources, targets = _read_edges(arrays, source)
    is_sparse = "attr_indptr" in arrays
    if is_sparse:
        x = Csr.from_arrays(_choose_prefixed(arrays, "attr_"), "attr_", source).to_dense()
    else:
        x = _find_array(arrays, FEATURES, "features", source)
        if x.ndim != 2 or 0 in x.shape or x.dtype.kind not in "fiub":
            raise DataError(
                f"{source}: its features are {x.shape} of {x.dtype}; give numbers [nodes, "
                "features]."
            )
    return RawGraph(
        x=x,
        sparse=is_sparse,
        sources=sources,
        targets=targets,
        labels=labels,
        splits=_read_splits(arrays, len(labels), source),
    )


def _load_arrays(archive: Archive) -> dict[str, np.ndarray]:
    """Read all arrays, and the tables whose names say what they hold."""
    arrays: dict[str, np.ndarray] = {}
    # PyG and OGB write a file for each array, NumPy one for all.
    for name in archive.names:
        base = name.rpartition("/")[2]
        if base.endswith((".npz", ".npy")):
            with archive.open(name) as file:
                for key, array in load_arrays(file, name).items():
                    arrays[key or base.removesuffix(".npy")] = array
        elif base.endswith(TABLES):
            key = base.partition(".csv")[0].replace("-", "_")
            if key in (*EDGES, *_SPLITS):
                arrays[key] = _read_table(archive, name, np.int64)
            elif key in (*FEATURES, *LABELS):
                arrays[key] = _read_table(archive, name, np.float64)
    return arrays


def _read_table(archive: Archive, name: str, dtype: type[np.generic]) -> np.ndarray:
    with archive.stream(name) as stream:
        lines = [line.decode(errors="replace") for line in stream.lines() if line.strip()]
    with reading(
        f"{archive.path}: {name} cannot be read",
        "Give lines of comma-separated numbers.",
        ValueError,
    ):
        # NumPy only warns of no lines at all.
        table = np.loadtxt(lines or ["nothing"], dtype, delimiter=",", ndmin=2, comments=None)
    # OGB's tables list an edge a line.
    if name.rpartition("/")[2].startswith(EDGES):
        return table.T
    if table.shape[1:] == (1,):
        return table[:, 0]
    return table


def _find_array(arrays: _Arrays, names: tuple[str, ...], what: str, source: str) -> np.ndarray:
    for name in names:
        if name in arrays:
            return np.asarray(arrays[name])
    held = ", ".join(sorted(arrays)[:12]) or "nothing"
    raise DataError(f"{source} holds {held}; it needs {what} as {', '.join(names)}.")


def _choose_prefixed(arrays: _Arrays, prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays whose names begin with ``prefix``, by the rest of their names."""
    chosen = {}
    for name, array in arrays.items():
        if name.startswith(prefix):
            chosen[name.removeprefix(prefix)] = array
    return chosen


def _read_edges(arrays: _Arrays, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the source and the target of each edge."""
    if "adj_indptr" in arrays:
        matrix = Csr.from_arrays(_choose_prefixed(arrays, "adj_"), "adj_", source)
        height, width = matrix.shape
        if height != width:
            raise DataError(
                f"{source}: its adj is {height} x {width}; an adjacency matrix must be square."
            )
        # An explicit zero is an edge that was removed.
        present = matrix.values != 0
        return matrix.columns[present], matrix.rows[present]
    index = _find_array(arrays, EDGES, "edges", source)
    if index.ndim != 2 or len(index) != 2:
        raise DataError(
            f"{source}: its edges have the shape {index.shape}; give [2, edges], sources first."
        )
    if index.dtype.kind not in "iu":
        raise DataError(f"{source}: its edges are of {index.dtype}; give integer node numbers.")
    sources, targets = index.astype(np.int64)
    return sources, targets


def _read_splits(arrays: _Arrays, count: int, source: str) -> dict[str, np.ndarray]:
    """Return the nodes of each split. Of several arrays, that with the word for most counts."""
    nodes = {}
    for split, words in WORDS.items():
        for word, end in product(reversed(words), ("_mask", "_idx", "_index", "")):
            key = word + end
            if key in arrays:
                nodes[split] = _read_nodes(np.asarray(arrays[key]), key, count, source)
    return nodes


def _read_nodes(values: np.ndarray, key: str, count: int, source: str) -> np.ndarray:
    """Return node numbers, ascending, from a mask or a list of them."""
    # A mask may be stored as 0 and 1, which are also node numbers.
    is_mask = values.dtype.kind == "b" or key.endswith("_mask")
    if values.ndim != 1 or (is_mask and len(values) != count):
        raise DataError(
            f"{source}: {key} has the shape {values.shape}, but there are {count:,} nodes. Give "
            f"one for each node; of several splits choose one: {key}[:, 0]."
        )
    if is_mask:
        if values.dtype.kind not in "biuf" or not ((values == 0) | (values == 1)).all():
            raise DataError(
                f"{source}: {key} must be true or false, or 1 or 0, for every node. Correct it."
            )
        return np.flatnonzero(values)
    if values.dtype.kind not in "iu" or values.min(initial=0) < 0 or values.max(initial=0) >= count:
        raise DataError(f"{source}: {key} has node numbers outside 0 to {count - 1}. Correct it.")
    return np.unique(values).astype(np.int64)


@dataclass(frozen=True)
class Csr:
    """The elements of a sparse matrix."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    shape: tuple[int, int]

    @staticmethod
    def from_arrays(arrays: Mapping[str, object], name: str, where: str) -> Csr:
        """Read compressed sparse rows: ``indptr``, ``indices``, ``shape`` and perhaps ``data``.

        ``name`` and ``where`` begin messages. Raises DataError for anything else.
        """
        offsets = np.asarray(arrays.get("indptr"))
        columns = np.asarray(arrays.get("indices"))
        lengths = np.asarray(arrays.get("shape"))
        values = np.asarray(arrays.get("data", np.ones(columns.shape, np.float32)))
        if not _are_compressed_rows(offsets, columns, lengths, values):
            raise DataError(
                f"{where}: {name}indptr, _indices, _shape and _data are not compressed sparse rows "
                "of numbers. Save them again."
            )
        height, width = lengths.tolist()
        counts: np.ndarray = np.diff(offsets.astype(np.int64))
        rows = np.repeat(np.arange(height), counts)
        return Csr(rows, columns.astype(np.int64), values, (height, width))

    def to_dense(self) -> np.ndarray:
        """Return the matrix as float32, with the sums of repeated elements."""
        x = np.zeros(self.shape, np.float32)
        np.add.at(x, (self.rows, self.columns), self.values.astype(np.float32))
        return x


def _are_compressed_rows(
    offsets: np.ndarray, columns: np.ndarray, lengths: np.ndarray, values: np.ndarray
) -> bool:
    for part in (offsets, columns, lengths):
        if part.ndim != 1 or part.dtype.kind not in "iu":
            return False
    # Complex numbers and texts have no value to learn from.
    if len(lengths) != 2 or values.ndim != 1 or values.dtype.kind not in "fiub":
        return False
    height, width = lengths.tolist()
    # Differences of unsigned numbers would wrap around.
    starts = offsets.astype(np.int64)
    if not (0 < height < 2**31 and 0 < width < 2**31 and len(starts) == height + 1):
        return False
    ascends = starts[0] == 0 and (np.diff(starts) >= 0).all()
    is_full = starts[-1] == len(columns) == len(values)
    is_inside = columns.min(initial=0) >= 0 and columns.max(initial=0) < width
    return bool(ascends and is_full and is_inside)
