"""The files that graphs come in: arrays of one or several names, tables of numbers, or Planetoid's.

    GRAPH.npz                   edges: adj_indptr, adj_indices, adj_shape (and adj_data) of CSR; or edge_index; or row
                                and col. Features: attr_* of CSR, attr_matrix, x, features, feat or node_feat. Labels:
                                labels, label, y or node_label. train_mask, val_mask and test_mask, or train_idx, ...
    NAME.npy ...                the same, one array a file
    edge.csv node-feat.csv node-label.csv train.csv valid.csv test.csv       as OGB has them, .gz too
    ind.NAME.x .tx .allx .y .ty .ally .graph .test.index                     Planetoid

An edge_index is ``[2, edges]``, sources first, as in PyG; a table has a line for each edge. Row i of a matrix of edges
has the nodes that node i hears from.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from istmpi.data.dataset import NAMES
from istmpi.data.files.archive import Archive
from istmpi.data.files.npz import load_arrays
from istmpi.data.graph.planetoid import RawGraph, dense, planetoid_name, read_planetoid
from istmpi.data.sparse.split import is_csr
from istmpi.errors import ConfigError, DataError
from istmpi.foreign import reading
from istmpi.units import counted

EDGES = ("edge_index", "edge", "edges")
FEATURES = ("x", "features", "feature", "feat", "feats", "node_feat", "attr_matrix", "attr")
LABELS = ("labels", "label", "y", "node_label")
TABLES = (".csv", ".csv.gz")
_SPLITS = tuple(name for names in NAMES.values() for name in names)


@dataclass(frozen=True)
class _Arrays:
    """Arrays by their names, without folders."""

    arrays: Mapping[str, np.ndarray]
    source: str

    def first(self, names: tuple[str, ...], what: str) -> np.ndarray:
        for name in names:
            if name in self.arrays:
                return np.asarray(self.arrays[name])
        held = ", ".join(sorted(self.arrays)[:12]) or "nothing"
        raise DataError(f"{self.source} holds {held}; it needs {what} as {', '.join(names)}.")


def read_raw(archive: Archive, split: int | None = None) -> RawGraph:
    """Return the graph of an archive's files; ``split`` chooses a column of masks [nodes, splits]."""
    if name := planetoid_name(archive.names):
        if split is not None:
            raise _no_splits(archive.path)
        return read_planetoid(archive, name)
    graph = _Arrays(_arrays(archive), str(archive.path))
    labels = graph.first(LABELS, "labels")
    if labels.ndim not in (1, 2) or not labels.size:
        raise DataError(f"{graph.source}: its labels have the shape {labels.shape}; give [nodes] or [nodes, labels].")
    sources, targets = _edges(graph)
    if sparse := "attr_indptr" in graph.arrays:
        offsets, columns, shape, values = _csr(graph, "attr")
        x = dense(offsets, columns, values, shape)
    else:
        x = graph.first(FEATURES, "features")
        if x.ndim != 2 or 0 in x.shape or x.dtype.kind not in "fiub":
            raise DataError(f"{graph.source}: its features are {x.shape} of {x.dtype}; give numbers [nodes, features].")
    return RawGraph(x, sparse, sources, targets, labels, _splits(graph, len(labels), split))


def _arrays(archive: Archive) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name in archive.names:
        base = name.rpartition("/")[2]
        if base.endswith((".npz", ".npy")):
            with archive.open(name) as file:
                read = {key or base.removesuffix(".npy"): array for key, array in load_arrays(file, name).items()}
            arrays |= {key.replace("-", "_"): array for key, array in read.items()}
        elif base.endswith(TABLES):
            key = base.partition(".csv")[0].replace("-", "_")
            if key in (*EDGES, *FEATURES, *LABELS, *_SPLITS):
                arrays[key] = _table(archive, name, np.int64 if key in (*EDGES, *_SPLITS) else np.float64)
    return arrays


def _table(archive: Archive, name: str, dtype: type) -> np.ndarray:
    """Return a table of numbers; one of edges, a line each, comes as ``[2, edges]``."""
    content, cure = next(b"".join(pieces) for _, pieces in archive.pieces([name])), "Give lines of numbers with commas"
    if not content.strip():
        raise DataError(f"{archive.path}: {name} is empty. {cure} between.")
    with reading(f"{archive.path}: {name} cannot be read", f"{cure} between.", ValueError):
        table = np.loadtxt(io.BytesIO(content), dtype, delimiter=",", ndmin=2, comments=None)
    if name.rpartition("/")[2].startswith(EDGES):
        return table.T
    return table[:, 0] if table.shape[1:] == (1,) else table


def _edges(graph: _Arrays) -> tuple[np.ndarray, np.ndarray]:
    arrays = graph.arrays
    if "adj_indptr" in arrays:
        offsets, columns, shape, values = _csr(graph, "adj")
        if shape[0] != shape[1]:
            raise DataError(f"{graph.source}: its adj is {shape[0]} x {shape[1]}; an adjacency matrix is square.")
        rows = np.repeat(np.arange(shape[0]), np.diff(offsets))
        return columns[values != 0], rows[values != 0]
    if "row" in arrays and "col" in arrays:
        pair = arrays["col"], arrays["row"]
    else:
        index = graph.first(EDGES, "edges")
        if index.ndim != 2 or len(index) != 2:
            raise DataError(f"{graph.source}: its edges have the shape {index.shape}; give [2, edges], sources first.")
        pair = index[0], index[1]
    if any(end.dtype.kind not in "iu" or end.ndim != 1 for end in pair) or len(pair[0]) != len(pair[1]):
        raise DataError(f"{graph.source}: its edges are of {pair[0].dtype}; give the whole numbers of nodes.")
    return tuple(np.asarray(end, np.int64) for end in pair)


def _csr(graph: _Arrays, name: str) -> tuple[np.ndarray, np.ndarray, tuple[int, int], np.ndarray]:
    offsets, columns, lengths = (
        graph.first((f"{name}_{part}",), f"all of {name}") for part in ("indptr", "indices", "shape")
    )
    values = np.asarray(graph.arrays.get(f"{name}_data", np.ones(columns.shape, np.float32)))
    whole = all(part.ndim == 1 and part.dtype.kind in "iu" for part in (offsets, columns, lengths))
    if not whole or len(lengths) != 2 or values.ndim != 1 or values.dtype.kind not in "fiub":
        raise DataError(
            f"{graph.source}: {name}_indptr, _indices and _shape must be lists of whole numbers, the last of two, and "
            f"{name}_data one of numbers. Save them again."
        )
    shape = int(lengths[0]), int(lengths[1])
    if not is_csr(offsets, columns, values, shape):
        raise DataError(f"{graph.source}: {name}_indptr, _indices and _shape do not fit together. Save them again.")
    if name == "attr" and len(columns) and (columns.min() < 0 or columns.max() >= shape[1]):
        raise DataError(f"{graph.source}: attr_indices has numbers that are not below {shape[1]}. Save it again.")
    return offsets.astype(np.int64), columns.astype(np.int64), shape, values


def _splits(graph: _Arrays, count: int, number: int | None) -> dict[str, np.ndarray]:
    nodes, several = {}, False
    for split, names in NAMES.items():
        for key in (f"{name}{end}" for name in reversed(names) for end in ("_mask", "_idx", "_index", "")):
            if key in graph.arrays:
                mask = np.asarray(graph.arrays[key])
                if mask.ndim == 2 and mask.shape[0] == count and mask.shape[1] > 0:
                    if number is None or number >= mask.shape[1]:
                        raise DataError(
                            f"{graph.source}: {key} has {counted(mask.shape[1], 'split')}. Choose one by its number: "
                            f"--split 0{f' to {mask.shape[1] - 1}' * (mask.shape[1] > 1)}."
                        )
                    mask, several = mask[:, number], True
                nodes[split] = _nodes(mask, key, count, graph.source)
    if number is not None and not several:
        raise _no_splits(graph.source)
    if "node_types" in graph.arrays and not nodes:  # DGL's Reddit
        types = np.asarray(graph.arrays["node_types"])
        if types.shape != (count,):
            raise _not_one_each(types, "node_types", count, graph.source)
        nodes = {split: np.flatnonzero(types == kind) for kind, split in enumerate(("train", "validation", "test"), 1)}
    return nodes


def _no_splits(source: object) -> ConfigError:
    return ConfigError(f"--split chooses among masks [nodes, splits]; {source} has none. Leave it out.")


def _not_one_each(given: np.ndarray, key: str, count: int, source: str) -> DataError:
    return DataError(f"{source}: {key} has the shape {given.shape}, but there are {count:,} nodes. Give one for each.")


def _nodes(given: np.ndarray, key: str, count: int, source: str) -> np.ndarray:
    mask = given.dtype.kind == "b" or key.endswith("_mask")
    if given.ndim != 1 or (mask and len(given) != count):
        raise _not_one_each(given, key, count, source)
    if mask:
        if given.dtype.kind not in "biuf" or not ((given == 0) | (given == 1)).all():
            raise DataError(f"{source}: {key} must have true or false, or 1 or 0, for each node. Correct it.")
        return np.flatnonzero(given)
    if given.dtype.kind not in "iu" or (len(given) and (given.min() < 0 or given.max() >= count)):
        raise DataError(f"{source}: {key} has numbers of nodes that are not from 0 to {count - 1}. Correct it.")
    return np.unique(given).astype(np.int64)
