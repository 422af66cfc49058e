"""Reads the files of a graph: arrays, tables of numbers, or Planetoid's pickles (docs/data.md)."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.dataset import WORDS
from istmpi.data.dense.arrays import load_arrays
from istmpi.data.pickles import read_pickle
from istmpi.errors import DataError
from istmpi.foreign import reading, whole_number

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


def read_raw(archive: Archive) -> RawGraph:
    if name := planetoid_name(archive.names):
        return read_planetoid(archive, name)
    arrays, source = _arrays(archive), str(archive.path)
    labels = _first(arrays, LABELS, "labels", source)
    if labels.ndim not in (1, 2) or not labels.size:
        raise DataError(
            f"{source}: its labels have the shape {labels.shape}; give [nodes] or [nodes, labels]."
        )
    sources, targets = _edges(arrays, source)
    if sparse := "attr_indptr" in arrays:
        x = dense_of(_parts(arrays, "attr_"), "attr_", source)
    else:
        x = _first(arrays, FEATURES, "features", source)
        if x.ndim != 2 or 0 in x.shape or x.dtype.kind not in "fiub":
            raise DataError(
                f"{source}: its features are {x.shape} of {x.dtype}; give numbers [nodes, features]."
            )
    return RawGraph(x, sparse, sources, targets, labels, _splits(arrays, len(labels), source))


def _arrays(archive: Archive) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name in archive.names:
        base = name.rpartition("/")[2]
        if base.endswith((".npz", ".npy")):
            with archive.open(name) as file:
                arrays |= {
                    key or base.removesuffix(".npy"): array
                    for key, array in load_arrays(file, name).items()
                }
        elif base.endswith(TABLES):
            key = base.partition(".csv")[0].replace("-", "_")
            if key in (*EDGES, *FEATURES, *LABELS, *_SPLITS):
                arrays[key] = _table(
                    archive, name, np.int64 if key in (*EDGES, *_SPLITS) else np.float64
                )
    return arrays


def _table(archive: Archive, name: str, dtype: type) -> np.ndarray:
    with archive.stream(name) as stream:
        lines = [line.decode(errors="replace") for line in stream.lines() if line.strip()] or [
            "nothing"
        ]
    with reading(
        f"{archive.path}: {name} cannot be read",
        "Give lines of comma-separated numbers.",
        ValueError,
    ):
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
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _edges(arrays: _Arrays, source: str) -> tuple[np.ndarray, np.ndarray]:
    if "adj_indptr" in arrays:
        rows, columns, values, shape = csr_of(_parts(arrays, "adj_"), "adj_", source)
        if shape[0] != shape[1]:
            raise DataError(
                f"{source}: its adj is {shape[0]} x {shape[1]}; an adjacency matrix must be square."
            )
        return columns[values != 0], rows[values != 0]
    index = _first(arrays, EDGES, "edges", source)
    if index.ndim != 2 or len(index) != 2:
        raise DataError(
            f"{source}: its edges have the shape {index.shape}; give [2, edges], sources first."
        )
    if index.dtype.kind not in "iu":
        raise DataError(f"{source}: its edges are of {index.dtype}; give integer node numbers.")
    return tuple(index.astype(np.int64))


def _splits(arrays: _Arrays, count: int, source: str) -> dict[str, np.ndarray]:
    nodes = {}
    for split, names in WORDS.items():
        for key in (
            f"{name}{end}" for name in reversed(names) for end in ("_mask", "_idx", "_index", "")
        ):
            if key in arrays:
                nodes[split] = _nodes(np.asarray(arrays[key]), key, count, source)
    return nodes


def _nodes(given: np.ndarray, key: str, count: int, source: str) -> np.ndarray:
    mask = given.dtype.kind == "b" or key.endswith("_mask")
    if given.ndim != 1 or (mask and len(given) != count):
        raise DataError(
            f"{source}: {key} has the shape {given.shape}, but there are {count:,} nodes. Give one for each "
            f"node; of several splits choose one: {key}[:, 0]."
        )
    if mask:
        if given.dtype.kind not in "biuf" or not ((given == 0) | (given == 1)).all():
            raise DataError(
                f"{source}: {key} must be true or false, or 1 or 0, for every node. Correct it."
            )
        return np.flatnonzero(given)
    if given.dtype.kind not in "iu" or (len(given) and (given.min() < 0 or given.max() >= count)):
        raise DataError(f"{source}: {key} has node numbers outside 0 to {count - 1}. Correct it.")
    return np.unique(given).astype(np.int64)


PARTS = ("allx", "ally", "tx", "ty", "y", "graph", "test.index")
VALIDATION = 500


def csr_of(
    parts: Mapping[str, object], name: str, where: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple]:
    """Return the rows, columns and values of a CSR matrix's elements, and its shape. DataError if
    it is not CSR."""
    offsets, columns, lengths = (
        np.asarray(parts.get(part)) for part in ("indptr", "indices", "shape")
    )
    values = np.asarray(parts.get("data", np.ones(columns.shape, np.float32)))
    lists = all(part.ndim == 1 and part.dtype.kind in "iu" for part in (offsets, columns, lengths))
    if fits := lists and len(lengths) == 2 and values.ndim == 1 and values.dtype.kind in "fiub":
        shape, columns, offsets = (
            (int(lengths[0]), int(lengths[1])),
            columns.astype(np.int64),
            offsets.astype(np.int64),
        )
        fits = len(offsets) == shape[0] + 1 and offsets[0] == 0 and (np.diff(offsets) >= 0).all()
        fits = (
            fits
            and offsets[-1] == len(columns) == len(values)
            and all(0 < length < 2**31 for length in shape)
        )
        fits = fits and columns.min(initial=0) >= 0 and columns.max(initial=-1) < shape[1]
    if not fits:
        raise DataError(
            f"{where}: {name}indptr, _indices, _shape and _data are not compressed sparse rows of numbers. "
            "Save them again."
        )
    return np.repeat(np.arange(shape[0]), np.diff(offsets)), columns, values, shape


def dense_of(parts: Mapping[str, object], name: str, where: str) -> np.ndarray:
    rows, columns, values, shape = csr_of(parts, name, where)
    x = np.zeros(shape, np.float32)
    np.add.at(x, (rows, columns), values.astype(np.float32))
    return x


def planetoid_name(names: Collection[str]) -> str:
    return next(
        (
            match[0]
            for name in names
            if (match := re.match(r"(?:.*/)?ind\.[^/]+?\.(?=allx$)", name))
        ),
        "",
    )


def read_planetoid(archive: Archive, prefix: str) -> RawGraph:
    where, again = f"{archive.path}: {prefix}", "Download it again."
    if missing := [part for part in PARTS if prefix + part not in archive.names]:
        raise DataError(f"{archive.path} has no {prefix}{missing[0]}. Give all files of that set.")
    files = {
        name.removeprefix(prefix): content
        for name, content in archive.read([prefix + part for part in PARTS])
    }

    def pickled(part: str, kind: type) -> object:
        with reading(f"{where}{part} is not a Planetoid pickle", again, ValueError):
            return read_pickle(files[part], kind)

    def matrix(part: str) -> np.ndarray:
        parts = pickled(part, dict)
        return dense_of({"shape": parts.get("_shape"), **parts}, "its ", where + part)

    def one_hot(part: str) -> np.ndarray:
        value = pickled(part, np.ndarray)
        if value.ndim != 2 or not ((value == 0) | (value == 1)).all():
            raise DataError(f"{where}{part} is not a one-hot matrix of classes. {again}")
        return np.where(value.any(axis=1), value.argmax(axis=1), -1)

    with reading(f"{where}test.index cannot be read", "Give one number per line.", ValueError):
        index = np.array(
            [whole_number(word) for word in files["test.index"].decode().split()], np.int64
        )
    others, tested = map(matrix, ("allx", "tx"))
    classes, tested_classes, learnt = map(one_hot, ("ally", "ty", "y"))
    fits = (
        len(others) == len(classes)
        and len(tested) == len(tested_classes) == len(index) == len(np.unique(index)) > 0
    )
    fits = fits and len(others) <= index.min() and index.max() < 2 * (len(others) + len(tested))
    if not fits or others.shape[1] != tested.shape[1] or len(learnt) > len(others):
        raise DataError(
            f"{archive.path}: the files {prefix}* do not fit together. Give all files of the same set."
        )
    lists = pickled("graph", dict)
    edges = [
        (other, node) for node, heard in lists.items() if isinstance(heard, list) for other in heard
    ]
    kinds = {*map(type, lists), *(type(end) for edge in edges for end in edge)}
    if kinds - {int} or not all(isinstance(heard, list) for heard in lists.values()):
        raise DataError(f"{where}graph is not a dictionary of node lists. {again}")
    count = int(index.max()) + 1
    x, labels = np.zeros((count, others.shape[1]), np.float32), np.full(count, -1, np.int64)
    x[: len(others)], labels[: len(others)] = others, classes
    x[index], labels[index] = tested, tested_classes
    validation = np.arange(len(learnt), min(len(learnt) + VALIDATION, len(others)))
    splits = {"train": np.arange(len(learnt)), "validation": validation, "test": np.sort(index)}
    sources, targets = np.array(edges, np.int64).reshape(-1, 2).T
    return RawGraph(x, True, sources, targets, labels, splits)
