"""The files that graphs come in: arrays, tables of numbers, or Planetoid's.

    GRAPH.npz                   edges: edge_index, or adj_indptr, adj_indices, adj_shape (and adj_data) of CSR;
                                features: x, node_feat, attr_matrix, or attr_* of CSR; labels: labels, y or node_label;
                                train_mask, val_mask and test_mask, or train_idx, ...
    NAME.npy ...                the same, one array a file
    edge.csv node-feat.csv node-label.csv train.csv valid.csv test.csv       as OGB has them, .gz too
    ind.NAME.x .tx .allx .y .ty .ally .graph .test.index                     Planetoid

An edge_index is ``[2, edges]``, sources first, as in PyG; a table has a line for each edge. Row i of a matrix of edges
has the nodes that node i hears from.
"""

from collections.abc import Mapping

import numpy as np

from istmpi.data.dataset import WORDS
from istmpi.data.dense.arrays import load_arrays
from istmpi.data.files.archive import Archive
from istmpi.data.graph.planetoid import RawGraph, csr_of, dense_of, planetoid_name, read_planetoid
from istmpi.errors import DataError
from istmpi.foreign import reading

EDGES = ("edge_index", "edge")
FEATURES = ("x", "node_feat", "attr_matrix")
LABELS = ("labels", "y", "node_label")
TABLES = (".csv", ".csv.gz")
_SPLITS = tuple(name for names in WORDS.values() for name in names)
_Arrays = Mapping[str, np.ndarray]


def read_raw(archive: Archive) -> RawGraph:
    if name := planetoid_name(archive.names):
        return read_planetoid(archive, name)
    arrays, source = _arrays(archive), str(archive.path)
    labels = _first(arrays, LABELS, "labels", source)
    if labels.ndim not in (1, 2) or not labels.size:
        raise DataError(f"{source}: its labels have the shape {labels.shape}; give [nodes] or [nodes, labels].")
    sources, targets = _edges(arrays, source)
    if sparse := "attr_indptr" in arrays:
        x = dense_of(_parts(arrays, "attr_"), "attr_", source)
    else:
        x = _first(arrays, FEATURES, "features", source)
        if x.ndim != 2 or 0 in x.shape or x.dtype.kind not in "fiub":
            raise DataError(f"{source}: its features are {x.shape} of {x.dtype}; give numbers [nodes, features].")
    return RawGraph(x, sparse, sources, targets, labels, _splits(arrays, len(labels), source))


def _arrays(archive: Archive) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name in archive.names:
        base = name.rpartition("/")[2]
        if base.endswith((".npz", ".npy")):
            with archive.open(name) as file:
                arrays |= {key or base.removesuffix(".npy"): array for key, array in load_arrays(file, name).items()}
        elif base.endswith(TABLES):
            key = base.partition(".csv")[0].replace("-", "_")
            if key in (*EDGES, *FEATURES, *LABELS, *_SPLITS):
                arrays[key] = _table(archive, name, np.int64 if key in (*EDGES, *_SPLITS) else np.float64)
    return arrays


def _table(archive: Archive, name: str, dtype: type) -> np.ndarray:
    """Return a table of numbers; one of edges, a line each, comes as ``[2, edges]``."""
    with archive.stream(name) as stream:
        lines = [line.decode(errors="replace") for line in stream.lines()] or ["nothing"]
    with reading(f"{archive.path}: {name} cannot be read", "Give lines of numbers with commas between.", ValueError):
        table = np.loadtxt(lines, dtype, delimiter=",", ndmin=2, comments=None)
    if name.rpartition("/")[2].startswith(EDGES):
        return table.T
    return table[:, 0] if table.shape[1:] == (1,) else table


def _first(arrays: _Arrays, names: tuple[str, ...], what: str, source: str) -> np.ndarray:
    for name in names:
        if name in arrays:
            return np.asarray(arrays[name])
    held = ", ".join(sorted(arrays)[:12]) or "nothing"
    raise DataError(f"{source} holds {held}; it needs {what} as {', '.join(names)}.")


def _parts(arrays: _Arrays, prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _edges(arrays: _Arrays, source: str) -> tuple[np.ndarray, np.ndarray]:
    if "adj_indptr" in arrays:
        rows, columns, values, shape = csr_of(_parts(arrays, "adj_"), "adj_", source)
        if shape[0] != shape[1]:
            raise DataError(f"{source}: its adj is {shape[0]} x {shape[1]}; an adjacency matrix is square.")
        return columns[values != 0], rows[values != 0]
    index = _first(arrays, EDGES, "edges", source)
    if index.ndim != 2 or len(index) != 2:
        raise DataError(f"{source}: its edges have the shape {index.shape}; give [2, edges], sources first.")
    if index.dtype.kind not in "iu":
        raise DataError(f"{source}: its edges are of {index.dtype}; give the whole numbers of nodes.")
    return tuple(index.astype(np.int64))


def _splits(arrays: _Arrays, count: int, source: str) -> dict[str, np.ndarray]:
    nodes = {}
    for split, names in WORDS.items():
        for key in (f"{name}{end}" for name in reversed(names) for end in ("_mask", "_idx", "_index", "")):
            if key in arrays:
                nodes[split] = _nodes(np.asarray(arrays[key]), key, count, source)
    return nodes


def _nodes(given: np.ndarray, key: str, count: int, source: str) -> np.ndarray:
    mask = given.dtype.kind == "b" or key.endswith("_mask")
    if given.ndim != 1 or (mask and len(given) != count):
        raise DataError(
            f"{source}: {key} has the shape {given.shape}, but there are {count:,} nodes. Give one for each; of "
            f"several splits choose one, as {key}[:, 0]."
        )
    if mask:
        if given.dtype.kind not in "biuf" or not ((given == 0) | (given == 1)).all():
            raise DataError(f"{source}: {key} must have true or false, or 1 or 0, for each node. Correct it.")
        return np.flatnonzero(given)
    if given.dtype.kind not in "iu" or (len(given) and (given.min() < 0 or given.max() >= count)):
        raise DataError(f"{source}: {key} has numbers of nodes that are not from 0 to {count - 1}. Correct it.")
    return np.unique(given).astype(np.int64)
