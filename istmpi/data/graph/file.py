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

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from istmpi.data.dataset import Dataset
from istmpi.data.graph.split import Graph, GraphSplit
from istmpi.data.sparse.split import Ragged
from istmpi.data.writer import Material
from istmpi.hdf5 import names_array
from istmpi.tasks import NODE_CLASSES, NODE_LABELS

if TYPE_CHECKING:
    from istmpi.data.hdf5 import PreparedFile

FLOATS, LONG, NUMBERS, BYTES = (np.dtype(code) for code in ("<f4", "<i8", "<i4", "u1"))


def material_of(
    source: str,
    outputs: int,
    classes: tuple[str, ...] | None,
    nodes: Mapping[str, np.ndarray],
    graph: Graph,
    facts: Mapping[str, Any] | None = None,
) -> Material:
    """Return a graph on its way into a file, with the nodes of each split."""
    labels = graph.labels, BYTES if classes is None else LONG
    arrays = {"x": (graph.x, FLOATS), "indptr": (graph.neighbours.offsets, LONG)}
    arrays |= {"indices": (graph.neighbours.arrays[0], NUMBERS), "labels": labels}
    if graph.clusters is not None:
        arrays["clusters"] = graph.clusters, NUMBERS
    arrays |= {f"{split}/nodes": (members, LONG) for split, members in nodes.items()}
    datasets = {path: np.ascontiguousarray(values, dtype) for path, (values, dtype) in arrays.items()}
    if classes is not None:
        datasets["classes"] = names_array(classes)
    clusters, shape = 0 if graph.clusters is None else len(graph.members), graph.x.shape[1:]
    attributes = {"shape": shape, "nodes": len(graph), "edges": graph.edges, "clusters": clusters}
    counts = {split: len(members) for split, members in nodes.items()}
    task = NODE_LABELS if classes is None else NODE_CLASSES
    of_graph = "graph", source, task, shape, outputs, classes, counts, attributes, datasets
    return Material(*of_graph, facts=facts or {})


def open_graph(file: PreparedFile) -> Dataset:
    x, indptr, indices, labels = map(file.mapped, ("x", "indptr", "indices", "labels"))
    clusters = file.mapped("clusters") if file.has("clusters") else None
    guards = file.guard("x", x), file.guard("indices", indices)
    graph = Graph(x, Ragged(indptr, (indices,)), labels.view(np.ndarray), clusters, guards)
    splits = {split: GraphSplit(graph, file.mapped(f"{split}/nodes").view(np.ndarray)) for split in file.splits}
    facts = file.text("task"), file.shape, file.outputs, file.names("classes"), file.text("source"), file.text("kind")
    return Dataset(splits, *facts)
