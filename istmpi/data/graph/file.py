"""A graph in a prepared file: its nodes' features and labels, and compressed sparse rows (CSR) of its edges.

/                       attributes as of other data, task "node-classes" or "node-labels", shape (features), outputs;
                        train, test[, validation] (nodes to learn from, and to be scored on), nodes, edges (numbers of
                        /indices), clusters (0: it was not cut)
/classes                names, UTF-8; absent where a node has several labels
/x                      (nodes, features) float32
/indptr                 (nodes + 1) int64: node i hears from the nodes indptr[i] to indptr[i + 1] of indices
/indices                (edges) int32, ascending for each node, without the node itself
/labels                 (nodes) int64, -1 where unknown, or (nodes, outputs) uint8
/clusters               (nodes) int32: the number of each node's cluster; absent where the graph was not cut
/SPLIT/nodes            (SPLIT) int64, ascending
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from istmpi.data.dataset import Dataset
from istmpi.data.graph.split import Graph, GraphSplit
from istmpi.data.sparse.split import Ragged
from istmpi.data.writer import FileWriter
from istmpi.hdf5 import names_array
from istmpi.tasks import NODE_CLASSES, NODE_LABELS

if TYPE_CHECKING:
    from istmpi.data.hdf5 import PreparedFile

FLOATS, LONG, NUMBERS, BYTES = (np.dtype(code) for code in ("<f4", "<i8", "<i4", "u1"))
_LOOKED_AT = 2**20
"""Numbers at the start of what is large that are looked at when a file is opened."""


@dataclass(frozen=True)
class GraphHeader:
    """What a prepared file says of a graph; ``nodes``: those of each split."""

    kind: str
    source: str
    outputs: int
    classes: tuple[str, ...] | None
    nodes: Mapping[str, np.ndarray]


class GraphWriter(FileWriter):
    """A context in which a graph becomes a prepared file."""

    def __init__(self, target: str | os.PathLike, header: GraphHeader, graph: Graph, force: bool = False):
        self._header, self._graph = header, graph
        attributes = {"kind": header.kind, "source": header.source, "outputs": header.outputs, "skipped": 0}
        attributes |= {"task": NODE_LABELS if header.classes is None else NODE_CLASSES}
        attributes |= {"shape": (graph.x.shape[1],), "nodes": len(graph), "edges": graph.edges}
        attributes |= {"clusters": 0 if graph.clusters is None else len(graph.members)}
        super().__init__(target, attributes, {split: len(nodes) for split, nodes in header.nodes.items()}, force)

    def _allocate(self) -> None:
        graph, lists = self._graph, self._graph.neighbours
        if self._header.classes is not None:
            self._whole("classes", names_array(self._header.classes))
        self._whole("x", np.ascontiguousarray(graph.x, FLOATS))
        self._whole("indptr", np.ascontiguousarray(lists.offsets, LONG))
        self._whole("indices", np.ascontiguousarray(lists.arrays[0], NUMBERS))
        self._whole("labels", np.ascontiguousarray(graph.labels, LONG if graph.labels.ndim == 1 else BYTES))
        if graph.clusters is not None:
            self._whole("clusters", np.ascontiguousarray(graph.clusters, NUMBERS))
        for split, nodes in self._header.nodes.items():
            self._whole(f"{split}/nodes", np.ascontiguousarray(nodes, LONG))


def read_graph(file: PreparedFile) -> Dataset:
    """The data set of an open prepared file of a graph, in batches of the whole; DataError for what is damaged."""
    shape, outputs = tuple(int(length) for length in file.attribute("shape")), int(file.attribute("outputs"))
    nodes, edges, clusters = (int(file.attribute(name)) for name in ("nodes", "edges", "clusters"))
    if len(shape) != 1 or not shape[0] > 0 or not 0 < outputs < 2**31 or not 0 < nodes < 2**31 or edges < 1:
        raise file.error(f"has {nodes} nodes of shape {shape}, {edges} edges and {outputs} labels; prepare it again")
    task = file.text("task")
    one = task == NODE_CLASSES
    x = file.mapped("x", (nodes, shape[0]), (FLOATS,))
    indptr = file.mapped("indptr", (nodes + 1,), (LONG,))
    indices = file.mapped("indices", (edges,), (NUMBERS,))
    labels = file.mapped("labels", (nodes,) if one else (nodes, outputs), (LONG if one else BYTES,))
    cut = file.mapped("clusters", (nodes,), (NUMBERS,)) if clusters else None
    if indptr[0] != 0 or indptr[-1] != edges or (np.diff(indptr) < 0).any():
        raise file.error(f"has an indptr that does not rise from 0 to {edges:,}; prepare it again")
    for name, numbers, least, most in (
        ("indices", indices[:_LOOKED_AT], 0, nodes),
        ("labels", labels, -1 if one else 0, outputs if one else 2),
        *([("clusters", cut, 0, clusters)] if clusters else []),
    ):
        if numbers.size and (numbers.min() < least or numbers.max() >= most):
            raise file.error(f"has numbers in {name} that are not from {least} to {most - 1}; prepare it again")
    # Of the features the first rows: all would be a full read.
    if not np.isfinite(x[: max(1, _LOOKED_AT // shape[0])]).all():
        raise file.error("has features in x that are not finite; prepare it again")
    guards = file.guard("x", x), file.guard("indices", indices)
    graph = Graph(x, Ragged(indptr, (indices,)), labels.view(np.ndarray), cut, guards)
    splits = {split: GraphSplit(graph, _nodes(file, split, graph)) for split in file.splits}
    classes = file.names("classes", outputs) if one else None
    return Dataset(splits, task, shape, outputs, classes, file.text("source"), file.text("kind"))


def _nodes(file: PreparedFile, split: str, graph: Graph) -> np.ndarray:
    count = int(file.attribute(split))
    if count < 1:
        raise file.error(f"has {count} {split} nodes; it needs at least one. Prepare it again")
    nodes = file.mapped(f"{split}/nodes", (count,), (LONG,)).view(np.ndarray)
    if nodes[0] < 0 or nodes[-1] >= len(graph) or (np.diff(nodes) <= 0).any():
        raise file.error(f"has {split}/nodes that do not rise from 0 to {len(graph) - 1}; prepare it again")
    if graph.labels[nodes].min() < 0:
        raise file.error(f"has {split} nodes without a label; prepare it again")
    return nodes
