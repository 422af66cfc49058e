"""Prepares a graph whose nodes have features and labels, all in memory.

Edges from a node to itself and repeated edges are dropped. An edge counts in both directions. If
the graph is ``directed``, only the edge's target receives from its source. Weights of edges are
ignored, but an edge of weight zero is dropped.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.dataset import SPLITS, require_finite
from istmpi.data.decoder import Decoder
from istmpi.data.graph.arrays import read_raw
from istmpi.data.graph.split import Graph
from istmpi.data.holdout import ONE_IN_FIVE, held_out
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
    raw = read_raw(archive)
    count = len(raw.labels)
    if len(raw.x) != count:
        raise DataError(
            f"{source} has features of {len(raw.x):,} nodes, but labels of {count:,}. Give one of each."
        )
    x = _normalised(raw.x, normalise or ("rows" if raw.sparse else "columns"), source)
    neighbours, loops, repeated = adjacency(raw.sources, raw.targets, count, directed, source)
    classes, labels = _labels(raw.labels, source)
    if not raw.splits:
        decoder.split = f"of the nodes {ONE_IN_FIVE}"
    nodes = _splits(raw.splits, labels, source)
    edges, parts, cut = int(neighbours.offsets[-1]), None, 0.0
    if clusters is not None:
        decoder.progress("cutting", 0, 1)
        parts, cut = _cut(neighbours, clusters, directed, source)
    degrees = np.diff(neighbours.offsets)
    alone = (degrees == 0) & (np.bincount(neighbours.arrays[0], minlength=count) == 0)
    facts = {"nodes": count, "nodes without an edge": int(alone.sum())}
    facts["directed edges" if directed else "edges, each in both directions"] = (
        edges if directed else edges // 2
    )
    facts |= {"dropped edges from a node to itself": loops, "dropped duplicate edges": repeated}
    facts |= {"largest number of neighbours": int(degrees.max())}
    if parts is not None:
        facts |= {
            "clusters": int(parts.max()) + 1,
            "share of edges between clusters": round(cut, 3),
        }
    outputs = labels.shape[1] if classes is None else len(classes)
    return material_of(
        archive.source, outputs, classes, nodes, Graph(x, neighbours, labels, parts), facts
    )


def adjacency(
    sources: np.ndarray, targets: np.ndarray, count: int, directed: bool, name: str
) -> tuple[Ragged, int, int]:
    """Return the nodes from which each node receives, and the numbers of loops and of repeated
    edges."""
    ends = np.stack([sources, targets])
    if (wrong := (ends < 0) | (ends >= count)).any():
        at = int(wrong.any(axis=0).argmax())
        raise DataError(
            f"{name}: edge {at} goes from node {ends[0, at]} to node {ends[1, at]}, but there are {count:,} nodes, "
            f"numbered from 0. Correct it, or give the nodes' features and labels."
        )
    loops = ends[0] == ends[1]
    sources, targets = ends[:, ~loops]
    once = len(
        np.unique(sources * count + targets)
    )  # an undirected edge may be listed once or in both directions
    repeated = len(sources) - once
    if not directed:
        sources, targets = np.concatenate([sources, targets]), np.concatenate([targets, sources])
    keys = np.unique(targets * count + sources)
    if not len(keys):
        raise DataError(f"{name} has no edges between two nodes. Give a graph with some.")
    offsets = np.searchsorted(keys, np.arange(count + 1) * count)
    return Ragged(offsets, ((keys % count).astype(np.int32),)), int(loops.sum()), repeated


def _normalised(x: np.ndarray, how: str, source: str) -> np.ndarray:
    require_finite(x, "node", source)
    rows = x.astype(np.float32)
    extent = Extent(x.shape[1])
    extent.add(x)
    extent.require_apart("feature", source)
    if how == "rows":
        sums = rows.sum(axis=1, keepdims=True, dtype=np.float64)
        return (rows / np.where(sums == 0, 1, sums)).astype(np.float32)
    if how == "columns":
        moments, step = Moments(x.shape[1]), max(_STEP // x.shape[1], 1)
        for start in range(0, len(x), step):
            moments.add(rows[start : start + step])
        mean, std, _ = moments.normalisation(x.shape[1])
        rows -= mean
        rows /= std
    return rows


def _labels(labels: np.ndarray, source: str) -> tuple[tuple[str, ...] | None, np.ndarray]:
    """Return classes and class numbers [nodes], -1 for no label; for several labels, None and uint8
    [nodes, labels]."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2:
        if (wrong := ~((labels == 0) | (labels == 1))).any():
            node, label = np.argwhere(wrong)[0]
            raise DataError(
                f"{source}: node {node} has {labels[node, label]} as label {label}; several labels per node "
                "must be 1 or 0. Give such labels, or one class per node."
            )
        return None, labels.astype(np.uint8)
    if labels.dtype.kind not in "biufUS":
        raise DataError(f"{source}: the labels are of {labels.dtype}; give whole numbers or names.")
    labels = read_names(labels, source, "")
    if labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels), -1.0, labels.astype(np.float64))
        if not ((np.abs(labels) < 2**53) & (labels == np.trunc(labels))).all():
            raise DataError(f"{source}: some labels are not whole numbers. Give each node a class.")
        labels = labels.astype(np.int64)
    labelled = labels >= 0 if labels.dtype.kind == "i" else np.ones(len(labels), bool)
    values, codes = np.unique(labels[labelled], return_inverse=True)
    numbers = np.full(len(labels), -1, np.int64)
    numbers[labelled] = codes.reshape(-1)
    return tuple(printable(str(value)) for value in values.tolist()), numbers


def _splits(
    splits: Mapping[str, np.ndarray], labels: np.ndarray, source: str
) -> dict[str, np.ndarray]:
    labelled = labels >= 0 if labels.ndim == 1 else np.ones(len(labels), bool)
    if not splits:
        places = np.flatnonzero(labelled)
        test = held_out(len(places), labels[places] if labels.ndim == 1 else None)
        splits = {"train": places[~test], "test": places[test]}
    nodes = {split: splits[split] for split in SPLITS if len(splits.get(split, ()))}
    for split, kind in (("train", "training"), ("test", "test")):
        if split not in nodes:
            raise DataError(
                f"{source} has no {kind} node; it needs at least one. Correct its masks."
            )
    for split, other in combinations(nodes, 2):
        if len(both := np.intersect1d(nodes[split], nodes[other])):
            raise DataError(
                f"{source}: node {both[0]} is both a {split} and a {other} node. Remove it from one of these masks."
            )
    for split, members in nodes.items():
        if not labelled[members].all():
            raise DataError(
                f"{source}: {split} node {members[~labelled[members]][0]} has no label. Remove it from that mask."
            )
    return nodes


def _cut(
    neighbours: Ragged, clusters: int, directed: bool, source: str
) -> tuple[np.ndarray, float]:
    count, edges = len(neighbours), neighbours.arrays[0].astype(np.int64)
    if not 0 < clusters <= count:
        raise ConfigError(
            f"--clusters {clusters}: {source} has {count:,} nodes; give 1 to {count}."
        )
    metis = optional("pymetis", "METIS", "clusters of a graph", "graph")
    if clusters == 1:
        return np.zeros(count, np.int32), 0.0
    rows = np.repeat(np.arange(count), np.diff(neighbours.offsets))
    # METIS cuts undirected graphs.
    whole = adjacency(edges, rows, count, False, source)[0] if directed else neighbours
    adjacent = metis.CSRAdjacency(whole.offsets, whole.arrays[0].astype(np.int64))
    _, parts = metis.part_graph(clusters, adjacent)
    _, parts = np.unique(np.asarray(parts), return_inverse=True)
    return parts.astype(np.int32).reshape(-1), float((parts[rows] != parts[edges]).mean())


def material_of(
    source: str,
    outputs: int,
    classes: tuple[str, ...] | None,
    nodes: Mapping[str, np.ndarray],
    graph: Graph,
    facts: Mapping[str, Any] | None = None,
) -> Material:
    arrays = {"x": (graph.x, "<f4"), "indptr": (graph.neighbours.offsets, "<i8")}
    arrays |= {"indices": (graph.neighbours.arrays[0], "<i4")}
    arrays |= {"labels": (graph.labels, "u1" if classes is None else "<i8")}
    if graph.clusters is not None:
        arrays["clusters"] = graph.clusters, "<i4"
    arrays |= {f"{split}/nodes": (members, "<i8") for split, members in nodes.items()}
    datasets = {path: np.ascontiguousarray(*array) for path, array in arrays.items()}
    if classes is not None:
        datasets["classes"] = names_array(classes)
    clusters, shape = 0 if graph.clusters is None else len(graph.members), graph.x.shape[1:]
    attributes = {"shape": shape, "nodes": len(graph), "edges": graph.edges, "clusters": clusters}
    counts = {split: len(members) for split, members in nodes.items()}
    task = NODE_LABELS if classes is None else NODE_CLASSES
    return Material(
        source, task, shape, outputs, classes, counts, attributes, datasets, facts=facts or {}
    )
