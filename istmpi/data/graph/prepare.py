"""Prepares a graph whose nodes have features and labels, all in memory.

Edges from a node to itself and repeated edges are dropped. An edge counts in both directions. If
the graph is ``directed``, only the edge's target receives from its source. Weights of edges are
ignored, but an edge of weight zero is dropped.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.dataset import SPLITS, require_finite
from istmpi.data.decoder import Decoder
from istmpi.data.graph.arrays import read_arrays
from istmpi.data.graph.planetoid import find_planetoid, read_planetoid
from istmpi.data.graph.split import Graph
from istmpi.data.holdout import ONE_IN_FIVE, draw_test
from istmpi.data.labels import read_names
from istmpi.data.moments import Extent, Moments
from istmpi.data.sparse.split import Ragged
from istmpi.data.writer import Material
from istmpi.errors import ConfigError, DataError
from istmpi.foreign import printable
from istmpi.hdf5 import names_array
from istmpi.optional import optional
from istmpi.tasks import NODE_CLASSES, NODE_LABELS

NORMALISATIONS = ("rows", "columns", "none")
_STEP = 2**22


def read(
    archive: Archive,
    decoder: Decoder,
    *,
    clusters: int | None = None,
    directed: bool = False,
    normalise: str | None = None,
) -> Material:
    """Read a graph, cut into ``clusters`` if given. ConfigError for a wrong option, DataError for a
    wrong graph."""
    source = str(archive.path)
    if normalise not in (None, *NORMALISATIONS):
        raise ConfigError(f"--normalise {normalise}: give {', '.join(NORMALISATIONS)}.")
    decoder.progress("reading", 0, 1)
    prefix = find_planetoid(archive.names)
    raw = read_planetoid(archive, prefix) if prefix else read_arrays(archive)
    count = len(raw.labels)
    if len(raw.x) != count:
        raise DataError(
            f"{source} has features of {len(raw.x):,} nodes, but labels of {count:,}. Give one of "
            "each."
        )
    # Sparse features are mostly counts of words: of each node, their shares matter.
    x = _normalise(raw.x, normalise or ("rows" if raw.sparse else "columns"), source)
    adjacency = connect(raw.sources, raw.targets, count, directed, source)
    neighbours = adjacency.neighbours
    classes, labels = _read_labels(raw.labels, source)
    if not raw.splits:
        decoder.split = f"of the nodes {ONE_IN_FIVE}"
    nodes = _read_splits(raw.splits, labels, source)
    parts = None
    if clusters is not None:
        decoder.progress("cutting", 0, 1)
        parts = _cut(neighbours, clusters, directed, source)
    outputs = labels.shape[1] if classes is None else len(classes)
    graph = Graph(x=x, neighbours=neighbours, labels=labels, clusters=parts)
    facts = _describe(graph, adjacency, directed)
    return build_material(archive.source, outputs, classes, nodes, graph, facts)


class Adjacency(NamedTuple):
    neighbours: Ragged
    """The nodes from which each node receives."""
    loops: int
    """The number of edges from a node to itself."""
    repeated: int
    """The number of edges that repeat another one."""


def connect(
    sources: np.ndarray, targets: np.ndarray, count: int, directed: bool, name: str
) -> Adjacency:
    """Return the neighbours of ``count`` nodes. Raises DataError for other nodes, or no edges."""
    ends = np.stack([sources, targets])
    wrong = (ends < 0) | (ends >= count)
    if wrong.any():
        edge = int(wrong.any(axis=0).argmax())
        raise DataError(
            f"{name}: edge {edge} goes from node {ends[0, edge]} to node {ends[1, edge]}, but "
            f"there are {count:,} nodes, numbered from 0. Correct it, or give the nodes' features "
            "and labels."
        )
    loops = ends[0] == ends[1]
    sources, targets = ends[:, ~loops]
    # One number for each edge. Sorted, they are lists of neighbours, node after node.
    keys = np.unique(targets * count + sources)
    # An undirected edge may be listed once or in both directions; neither is a repeated edge.
    repeated = len(sources) - len(keys)
    if not directed:
        keys = np.union1d(keys, sources * count + targets)
    if not len(keys):
        raise DataError(f"{name} has no edges between two nodes. Give a graph with some.")
    offsets = np.searchsorted(keys, np.arange(count + 1) * count)
    neighbours = Ragged(offsets, ((keys % count).astype(np.int32),))
    return Adjacency(neighbours=neighbours, loops=int(loops.sum()), repeated=repeated)


def _describe(graph: Graph, adjacency: Adjacency, directed: bool) -> dict[str, int | float]:
    """Return the facts of a graph, as `istmpi prepare` prints them."""
    offsets = graph.neighbours.offsets
    receives_from = graph.neighbours.arrays[0]
    degrees = np.diff(offsets)
    sent = np.bincount(receives_from, minlength=len(graph))
    facts: dict[str, int | float] = {
        "nodes": len(graph),
        "nodes without an edge": int(((degrees == 0) & (sent == 0)).sum()),
    }
    if directed:
        facts["directed edges"] = graph.edges
    else:
        facts["edges, each in both directions"] = graph.edges // 2
    facts["dropped edges from a node to itself"] = adjacency.loops
    facts["dropped duplicate edges"] = adjacency.repeated
    facts["largest number of neighbours"] = int(degrees.max())
    if graph.clusters is not None:
        rows = np.repeat(np.arange(len(graph)), degrees)
        cut = (graph.clusters[rows] != graph.clusters[receives_from]).mean()
        facts["clusters"] = int(graph.clusters.max()) + 1
        facts["share of edges between clusters"] = round(float(cut), 3)
    return facts


def _normalise(x: np.ndarray, how: str, source: str) -> np.ndarray:
    """Return float32 features ``[nodes, features]``: ``how`` is rows, columns or none."""
    require_finite(x, "node", source)
    rows = x.astype(np.float32)
    extent = Extent(x.shape[1])
    extent.add(x)
    extent.require_apart("feature", source)
    if how == "rows":
        sums = rows.sum(axis=1, keepdims=True, dtype=np.float64)
        # A node without words has a row of zeros, and keeps it.
        return (rows / np.where(sums == 0, 1, sums)).astype(np.float32)
    if how == "columns":
        moments = Moments(x.shape[1])
        step = max(_STEP // x.shape[1], 1)
        for start in range(0, len(x), step):
            moments.add(rows[start : start + step])
        mean, std, _ = moments.normalisation(x.shape[1])
        rows -= mean
        rows /= std
    return rows


def _read_labels(labels: np.ndarray, source: str) -> tuple[tuple[str, ...] | None, np.ndarray]:
    """Return classes and class numbers [nodes], -1 for no label; for several labels, None and uint8
    [nodes, labels]."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2:
        wrong = ~((labels == 0) | (labels == 1))
        if wrong.any():
            node, label = np.argwhere(wrong)[0]
            raise DataError(
                f"{source}: node {node} has {labels[node, label]} as label {label}; several labels "
                "per node must be 1 or 0. Give such labels, or one class per node."
            )
        return None, labels.astype(np.uint8)
    if labels.dtype.kind not in "biufUS":
        raise DataError(f"{source}: the labels are of {labels.dtype}; give whole numbers or names.")
    labels = read_names(labels, source, "")
    if labels.dtype.kind == "f":
        # OGB writes NaN for a node without a label.
        labels = np.where(np.isnan(labels), -1.0, labels.astype(np.float64))
        if not ((np.abs(labels) < 2**53) & (labels == np.trunc(labels))).all():
            raise DataError(f"{source}: some labels are not whole numbers. Give each node a class.")
        labels = labels.astype(np.int64)
    labelled = np.ones(len(labels), bool)
    if labels.dtype.kind == "i":
        labelled = labels >= 0
    values, codes = np.unique(labels[labelled], return_inverse=True)
    numbers = np.full(len(labels), -1, np.int64)
    numbers[labelled] = codes.reshape(-1)
    return tuple(printable(str(value)) for value in values.tolist()), numbers


def _read_splits(
    splits: Mapping[str, np.ndarray], labels: np.ndarray, source: str
) -> dict[str, np.ndarray]:
    """Return the nodes of each split; without ``splits``, one labelled node in five is for testing.

    Raises DataError for a split without nodes, for nodes of two splits or without a label.
    """
    has_classes = labels.ndim == 1
    labelled = labels >= 0 if has_classes else np.ones(len(labels), bool)
    if not splits:
        places = np.flatnonzero(labelled)
        test = draw_test(len(places), labels[places] if has_classes else None)
        splits = {"train": places[~test], "test": places[test]}
    nodes = {split: splits[split] for split in SPLITS if len(splits.get(split, ()))}
    for split, kind in (("train", "training"), ("test", "test")):
        if split not in nodes:
            raise DataError(
                f"{source} has no {kind} node; it needs at least one. Correct its masks."
            )
    # A test node in training would make the score too good.
    for split, other in combinations(nodes, 2):
        both = np.intersect1d(nodes[split], nodes[other])
        if len(both):
            raise DataError(
                f"{source}: node {both[0]} is both a {split} and a {other} node. Remove it from "
                "one of these masks."
            )
    for split, members in nodes.items():
        unlabelled = members[~labelled[members]]
        if len(unlabelled):
            raise DataError(
                f"{source}: {split} node {unlabelled[0]} has no label. Remove it from that mask."
            )
    return nodes


def _cut(neighbours: Ragged, clusters: int, directed: bool, source: str) -> np.ndarray:
    """Return the cluster of each node [nodes] int32, as METIS cuts the graph."""
    count = len(neighbours)
    if not 0 < clusters <= count:
        raise ConfigError(
            f"--clusters {clusters}: {source} has {count:,} nodes; give 1 to {count}."
        )
    metis = optional("pymetis", "METIS", "clusters of a graph", "graph")
    if clusters == 1:
        return np.zeros(count, np.int32)
    # METIS cuts undirected graphs.
    if directed:
        edges = neighbours.arrays[0].astype(np.int64)
        rows = np.repeat(np.arange(count), np.diff(neighbours.offsets))
        neighbours = connect(edges, rows, count, False, source).neighbours
    adjacent = metis.CSRAdjacency(neighbours.offsets, neighbours.arrays[0].astype(np.int64))
    _, parts = metis.part_graph(clusters, adjacent)
    # A cluster may be empty; numbers leave no gap.
    _, numbers = np.unique(np.asarray(parts), return_inverse=True)
    return numbers.astype(np.int32).reshape(-1)


def build_material(
    source: str,
    outputs: int,
    classes: tuple[str, ...] | None,
    nodes: Mapping[str, np.ndarray],
    graph: Graph,
    facts: Mapping[str, Any] | None = None,
) -> Material:
    """Return the content of a prepared file; ``classes`` is None for several labels of a node."""
    datasets = {
        "x": np.ascontiguousarray(graph.x, "<f4"),
        "indptr": np.ascontiguousarray(graph.neighbours.offsets, "<i8"),
        "indices": np.ascontiguousarray(graph.neighbours.arrays[0], "<i4"),
        "labels": np.ascontiguousarray(graph.labels, "u1" if classes is None else "<i8"),
    }
    clusters = 0
    if graph.clusters is not None:
        clusters = len(graph.members)
        datasets["clusters"] = np.ascontiguousarray(graph.clusters, "<i4")
    for split, members in nodes.items():
        datasets[f"{split}/nodes"] = np.ascontiguousarray(members, "<i8")
    if classes is not None:
        datasets["classes"] = names_array(classes)
    shape = graph.x.shape[1:]
    sizes = {"nodes": len(graph), "edges": graph.edges, "clusters": clusters}
    return Material(
        source=source,
        task=NODE_LABELS if classes is None else NODE_CLASSES,
        shape=shape,
        outputs=outputs,
        classes=classes,
        counts={split: len(members) for split, members in nodes.items()},
        attributes={"shape": shape, **sizes},
        datasets=datasets,
        facts=facts or {},
    )
