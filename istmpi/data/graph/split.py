"""A graph whose nodes have features and labels, and its batches.

The setting `data.graph` decides if an example is the whole graph, a cluster, or a training node
with sampled neighbours. Scores are always computed on the whole graph. docs/formats.md describes
the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from istmpi import rng
from istmpi.data.batch import Batch
from istmpi.data.batches import BY_CLASS
from istmpi.data.dataset import Dataset, Split, add_to_checksum, checksum_rows, draw_sample
from istmpi.data.holdout import split_indices
from istmpi.data.sparse.split import Ragged, add_up_lengths
from istmpi.errors import ConfigError
from istmpi.tasks import OFF

if TYPE_CHECKING:
    from istmpi.data.hdf5 import Guard, Opened, PreparedFile

FANOUT = (10, 10, 10)
SAMPLE = 4096
TRIED = 8


@dataclass(frozen=True, eq=False)
class Graph:
    """The arrays of a graph; all may be memory maps."""

    x: np.ndarray
    neighbours: Ragged
    """The nodes from which each node receives: ascending, int32, without the node itself."""
    labels: np.ndarray
    """``[n]`` int64, or ``[n, outputs]`` uint8 of zeros and ones."""
    clusters: np.ndarray | None = None
    """The cluster of each node ``[n]``; None for a graph that was not cut."""
    guard: Guard | None = None
    """Verifies rows of ``x`` before they are read."""
    list_guard: Guard | None = None
    """Verifies lists of neighbours before they are read; called with their starts and lengths."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def edges(self) -> int:
        return int(self.neighbours.offsets[-1])

    def features(self, nodes: np.ndarray) -> np.ndarray:
        if self.guard is not None:
            self.guard(nodes)
        return self.x.view(np.ndarray).take(nodes, axis=0)

    def read_neighbours(self, nodes: np.ndarray) -> Ragged:
        return self.neighbours.take(nodes, [self.list_guard])

    @cached_property
    def whole(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        nodes = np.arange(len(self))
        lists = self.read_neighbours(nodes)
        return (
            self.features(nodes),
            lists.offsets.astype(np.int64),
            lists.arrays[0].astype(np.int64),
        )

    @cached_property
    def members(self) -> Ragged:
        assert self.clusters is not None, "`batch_nodes` refuses graphs without clusters"
        order = np.argsort(self.clusters, kind="stable")
        return Ragged(add_up_lengths(np.bincount(self.clusters)), (order,))


@dataclass(eq=False)
class GraphSplit(Split):
    """The nodes of a graph's split, in batches; ``how`` is full, clusters or neighbours.

    A batch of n nodes has three inputs: features ``[n, features]``, offsets ``[n + 1]``, and the
    nodes' joined lists of neighbours, by row in the batch. List i runs from offset i to offset i +
    1. Targets are the nodes' labels, but `OFF` for nodes that are not scored: outside the split or,
    with neighbours, outside ``indices``.
    """

    graph: Graph
    nodes: np.ndarray
    how: str = "full"
    fanout: Sequence[int] = FANOUT

    def batch(self, indices: np.ndarray, key: int | None = None) -> Batch:
        """Return the whole graph (full), the clusters ``indices``, or the split's nodes ``indices``
        with neighbours.

        ``key`` draws the neighbours; None takes all neighbours.
        """
        if self.how == "full":
            return self._whole
        # A batch that joins two passes may have a node twice.
        indices = np.unique(indices)
        if self.how == "clusters":
            nodes = np.sort(self.graph.members.take(indices).arrays[0])
            offsets, columns = induce_edges(self.graph, nodes)
            scored = self.nodes
        else:
            scored = self.nodes[indices]
            nodes, offsets, columns = sample_neighbours(self.graph, scored, self.fanout, key)
        return self._make_batch(nodes, scored, (self.graph.features(nodes), offsets, columns))

    @cached_property
    def _whole(self) -> Batch:
        return self._make_batch(np.arange(len(self.graph)), self.nodes, self.graph.whole)

    def _make_batch(
        self,
        nodes: np.ndarray,
        scored: np.ndarray,
        inputs: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> Batch:
        import torch

        labels = self.graph.labels[nodes]
        # Other nodes are in the batch for their neighbours alone.
        on = np.isin(nodes, scored, assume_unique=True)
        if labels.ndim == 1:
            targets = np.where(on, labels, OFF)
        else:
            targets = np.where(on[:, None], labels.astype(np.int8), np.int8(OFF))
        return Batch(tuple(map(torch.from_numpy, inputs)), torch.from_numpy(targets), int(on.sum()))

    def labels(self) -> np.ndarray:
        # A cluster or a whole graph has nodes of many classes.
        if self.how == "neighbours" and self.graph.labels.ndim == 1:
            return self.graph.labels[self.nodes]
        return super().labels()

    def __len__(self) -> int:
        if self.how == "clusters":
            return len(self.graph.members)
        return 1 if self.how == "full" else len(self.nodes)

    def hold_out(self, fraction: float, seed: int) -> tuple[GraphSplit, GraphSplit]:
        labels = self.graph.labels[self.nodes]
        classes = labels if labels.ndim == 1 else None
        train, held = split_indices(len(self.nodes), fraction, seed, classes)
        # Scores are of the whole graph, however training reads it.
        validation = GraphSplit(self.graph, self.nodes[held])
        return replace(self, nodes=self.nodes[train]), validation

    def measure_examples(self, batch: int, seed: int) -> tuple[float, float]:
        """Return the mean numbers of nodes and edges of an example, from a few drawn batches."""
        if self.how == "full":
            return len(self.graph), self.graph.edges
        count = len(self)
        batch = min(batch, count)
        nodes = 0
        edges = 0
        # Clusters and neighbourhoods differ in size, and the cost model needs a mean.
        for number in range(TRIED):
            stream = rng.key(seed, "size of batches", number)
            rows = rng.permutation(count, stream)[:batch]
            offsets = self.batch(rows, stream).inputs[1]
            nodes += len(offsets) - 1
            edges += int(offsets[-1])
        return nodes / TRIED / batch, edges / TRIED / batch

    @cached_property
    def labels_checksum(self) -> int:
        checksum = add_to_checksum(0, self.nodes.astype("<i8"))
        return add_to_checksum(checksum, self.graph.labels[self.nodes])

    @cached_property
    def features_checksum(self) -> int:
        graph = self.graph

        def read(nodes: np.ndarray) -> tuple[np.ndarray, ...]:
            lists = graph.neighbours.take(nodes)
            return graph.x[nodes], lists.offsets.astype("<i8"), lists.arrays[0].astype("<i4")

        first = 0
        if graph.clusters is not None:
            first = add_to_checksum(0, graph.clusters.astype("<i4"))
        return checksum_rows(draw_sample(len(graph), SAMPLE), read, first=first)


def induce_edges(graph: Graph, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return edges among ascending ``nodes``: offsets [n + 1], and joined lists of neighbours by
    place in ``nodes``."""
    lists = graph.read_neighbours(nodes)
    neighbours = lists.arrays[0]
    places = np.searchsorted(nodes, neighbours)
    inside = nodes[np.minimum(places, len(nodes) - 1)] == neighbours
    ends = np.concatenate([[0], np.cumsum(inside)])[lists.offsets]
    return ends, places[inside]


def sample_neighbours(
    graph: Graph, seeds: np.ndarray, fanout: Sequence[int], key: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the seeds and the nodes sampled around them, ascending, and the sampled edges in the
    form of `induce_edges`.

    A seed receives from at most ``fanout[0]`` neighbours, drawn uniformly without replacement. Each
    new neighbour receives from at most ``fanout[1]``, and so on; the nodes added last receive from
    none. Without a ``key`` all neighbours are taken.
    """
    nodes = np.sort(seeds)
    frontier = nodes
    listeners = []
    heard = []
    for hop, limit in enumerate(fanout):
        lists = graph.read_neighbours(frontier)
        neighbours = lists.arrays[0]
        counts = np.diff(lists.offsets)
        owner = np.repeat(np.arange(len(frontier)), counts)
        if key is not None:
            # The first of a list in random order are a draw without replacement.
            drawn = rng.bits(rng.key(key, "neighbours", hop), 0, len(neighbours))
            order = np.lexsort((drawn, owner))
            is_first = np.arange(len(neighbours)) - lists.offsets[owner] < limit
            neighbours = neighbours[order[is_first]]
            owner = np.repeat(np.arange(len(frontier)), np.minimum(counts, limit))
        listeners.append(frontier[owner])
        heard.append(neighbours)
        # A node that is already there has its neighbours, and needs no more.
        frontier = np.setdiff1d(neighbours, nodes)
        nodes = np.union1d(nodes, frontier)
    # Nodes are ascending, so a search gives their places in the batch.
    rows = np.searchsorted(nodes, np.concatenate(listeners))
    columns = np.searchsorted(nodes, np.concatenate(heard))
    order = np.lexsort((columns, rows))
    return nodes, add_up_lengths(np.bincount(rows, minlength=len(nodes))), columns[order]


def batch_nodes(
    data: Dataset, how: str, fanout: Sequence[int], placement: str = "shared"
) -> Dataset:
    """Return a data set whose training batches are of a graph in the way of the settings.

    Raises ConfigError if the settings are for graphs but the data are not, or do not fit together.
    """
    train = data.train
    if not isinstance(train, GraphSplit):
        _refuse_graph_settings(data, how, fanout)
        return data
    if placement in BY_CLASS and (how != "neighbours" or data.classes is None):
        raise ConfigError(
            f"data.placement = {placement!r} needs examples with one class each, which "
            f"{data.source} lacks. Use shared, or for node classes data.graph = 'neighbours'."
        )
    if (placement, how) == ("sharded", "full"):
        raise ConfigError(
            f"data.placement = 'sharded' needs several examples, but {data.source} is a whole "
            "graph. Use shared, or data.graph = 'clusters' or 'neighbours'."
        )
    if how == "clusters" and train.graph.clusters is None:
        raise ConfigError(
            f"data.graph = 'clusters' needs a graph cut into clusters, but {data.source} was "
            f"prepared whole: istmpi prepare graph {data.source} DST.h5 --clusters N."
        )
    train = replace(train, how=how, fanout=tuple(fanout))
    return replace(data, splits={**data.splits, "train": train})


def _refuse_graph_settings(data: Dataset, how: str, fanout: Sequence[int]) -> None:
    """Raise ConfigError if settings for graphs differ from their defaults."""
    if how != "full":
        setting = f"data.graph = {how!r}"
    elif tuple(fanout) != FANOUT:
        setting = f"data.fanout = {list(fanout)!r}"
    else:
        return
    raise ConfigError(
        f"{setting} is for graphs, but {data.source} is of kind {data.kind}. Leave it out."
    )


def open_graph(file: PreparedFile) -> Opened:
    x, guard = file.map_guarded("x")
    indices, list_guard = file.map_guarded("indices")
    clusters = None
    if file.has("clusters"):
        clusters = file.map("clusters")
    graph = Graph(
        x=x,
        neighbours=Ragged(file.map("indptr"), (indices,)),
        labels=file.map("labels").view(np.ndarray),
        clusters=clusters,
        guard=guard,
        list_guard=list_guard,
    )
    splits = {}
    for split in file.splits:
        splits[split] = GraphSplit(graph, file.map(f"{split}/nodes").view(np.ndarray))
    return splits, {}
