"""A graph whose nodes have features and labels, and its batches.

The setting `data.graph` decides if an example is the whole graph, a cluster, or a training node
with sampled neighbours. Scores are always computed on the whole graph. docs/formats.md describes
the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from istmpi import rng
from istmpi.data.batch import Batch
from istmpi.data.dataset import Dataset, Split, checksum_of, sample_of
from istmpi.data.holdout import split_indices
from istmpi.data.sparse.split import Ragged, offsets_of
from istmpi.errors import ConfigError
from istmpi.tasks import OFF, TASKS

if TYPE_CHECKING:
    from istmpi.data.hdf5 import Opened, PreparedFile

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
    guards: tuple[Callable[..., None] | None, Callable[..., None] | None] = (None, None)
    """Verify data before a read; called with rows of ``x``, and with starts and lengths of lists of
    neighbours."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def edges(self) -> int:
        return int(self.neighbours.offsets[-1])

    def features(self, nodes: np.ndarray) -> np.ndarray:
        if self.guards[0] is not None:
            self.guards[0](nodes)
        return self.x.view(np.ndarray).take(nodes, axis=0)

    def heard(self, nodes: np.ndarray) -> Ragged:
        return self.neighbours.take(nodes, self.guards[1:])

    @cached_property
    def whole(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        nodes = np.arange(len(self))
        lists = self.heard(nodes)
        return (
            self.features(nodes),
            lists.offsets.astype(np.int64),
            lists.arrays[0].astype(np.int64),
        )

    @cached_property
    def members(self) -> Ragged:
        order = np.argsort(self.clusters, kind="stable")
        return Ragged(offsets_of(np.bincount(self.clusters)), (order,))


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
        indices = np.unique(indices)
        if self.how == "clusters":
            nodes = np.sort(self.graph.members.take(indices).arrays[0])
            return self._of(
                nodes, self.nodes, (self.graph.features(nodes), *induced(self.graph, nodes))
            )
        seeds = self.nodes[indices]
        nodes, offsets, columns = sampled(self.graph, seeds, self.fanout, key)
        return self._of(nodes, seeds, (self.graph.features(nodes), offsets, columns))

    @cached_property
    def _whole(self) -> Batch:
        return self._of(np.arange(len(self.graph)), self.nodes, self.graph.whole)

    def _of(
        self,
        nodes: np.ndarray,
        scored: np.ndarray,
        inputs: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> Batch:
        import torch

        labels = self.graph.labels[nodes]
        on = np.isin(nodes, scored, assume_unique=True)
        if labels.ndim == 1:
            targets = np.where(on, labels, OFF)
        else:
            targets = np.where(on[:, None], labels.astype(np.int8), np.int8(OFF))
        return Batch(tuple(map(torch.from_numpy, inputs)), torch.from_numpy(targets), int(on.sum()))

    def labels(self) -> np.ndarray:
        if self.how == "neighbours" and self.graph.labels.ndim == 1:
            return self.graph.labels[self.nodes]
        return super().labels()

    def __len__(self) -> int:
        if self.how == "clusters":
            return len(self.graph.members)
        return 1 if self.how == "full" else len(self.nodes)

    def hold_out(self, fraction: float, seed: int) -> tuple[GraphSplit, GraphSplit]:
        labels = self.graph.labels[self.nodes]
        parts = split_indices(len(self.nodes), fraction, seed, labels if labels.ndim == 1 else None)
        train, validation = (self.nodes[part] for part in parts)
        return replace(self, nodes=train), GraphSplit(self.graph, validation)

    def size_of_example(self, batch: int, seed: int) -> tuple[float, float]:
        if self.how == "full":
            return len(self.graph), self.graph.edges
        count, nodes, edges = len(self), 0, 0
        batch = min(batch, count)
        for number in range(TRIED):
            stream = rng.key(seed, "size of batches", number)
            rows = rng.permutation(count, stream)[:batch]
            offsets = self.batch(rows, stream).inputs[1]
            nodes, edges = nodes + len(offsets) - 1, edges + int(offsets[-1])
        return nodes / TRIED / batch, edges / TRIED / batch

    @cached_property
    def labels_checksum(self) -> int:
        checksum = zlib.crc32(np.ascontiguousarray(self.nodes, "<i8"))
        return zlib.crc32(np.ascontiguousarray(self.graph.labels[self.nodes]), checksum)

    @cached_property
    def features_checksum(self) -> int:
        graph = self.graph

        def read(nodes: np.ndarray) -> tuple[np.ndarray, ...]:
            lists = graph.neighbours.take(nodes)
            return graph.x[nodes], lists.offsets.astype("<i8"), lists.arrays[0].astype("<i4")

        first = (
            0 if graph.clusters is None else zlib.crc32(np.ascontiguousarray(graph.clusters, "<i4"))
        )
        return checksum_of(sample_of(len(graph), SAMPLE), read, first=first)


def induced(graph: Graph, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return edges among ascending ``nodes``: offsets [n + 1], and joined lists of neighbours by
    place in ``nodes``."""
    lists = graph.heard(nodes)
    heard = lists.arrays[0]
    places = np.searchsorted(nodes, heard)
    inside = nodes[np.minimum(places, len(nodes) - 1)] == heard
    ends = np.concatenate([[0], np.cumsum(inside)])[lists.offsets]
    return ends, places[inside]


def sampled(
    graph: Graph, seeds: np.ndarray, fanout: Sequence[int], key: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the seeds and the nodes sampled around them, ascending, and the sampled edges in the
    form of `induced`.

    A seed receives from at most ``fanout[0]`` neighbours, drawn uniformly without replacement. Each
    new neighbour receives from at most ``fanout[1]``, and so on; the nodes added last receive from
    none. Without a ``key`` all neighbours are taken.
    """
    nodes = np.sort(seeds)
    frontier, listeners, heard = nodes, [], []
    for hop, limit in enumerate(fanout):
        lists = graph.heard(frontier)
        neighbours, counts = lists.arrays[0], np.diff(lists.offsets)
        owner = np.repeat(np.arange(len(frontier)), counts)
        if key is not None:
            drawn = rng.bits(rng.key(key, "neighbours", hop), 0, len(neighbours))
            order = np.lexsort((drawn, owner))  # each list in a random order
            neighbours = neighbours[
                order[np.arange(len(neighbours)) - lists.offsets[owner] < limit]
            ]
            owner = np.repeat(np.arange(len(frontier)), np.minimum(counts, limit))
        listeners.append(frontier[owner])
        heard.append(neighbours)
        frontier = np.setdiff1d(neighbours, nodes)
        nodes = np.union1d(nodes, frontier)
    rows, columns = (np.searchsorted(nodes, np.concatenate(ends)) for ends in (listeners, heard))
    order = np.lexsort((columns, rows))
    return nodes, offsets_of(np.bincount(rows, minlength=len(nodes))), columns[order]


def batched(data: Dataset, how: str, fanout: Sequence[int], placement: str = "shared") -> Dataset:
    of_nodes = TASKS[data.task].of_nodes
    if not of_nodes and (how, tuple(fanout)) != ("full", FANOUT):
        name, value = ("graph", how) if how != "full" else ("fanout", list(fanout))
        raise ConfigError(
            f"data.{name} = {value!r} is for graphs, but {data.source} is of kind {data.kind}. Leave it out."
        )
    if not of_nodes:
        return data
    if placement == "by-label" and (how != "neighbours" or data.classes is None):
        raise ConfigError(
            f"data.placement = 'by-label' needs examples with one class each, which {data.source} lacks. Use "
            "shared, or for node classes data.graph = 'neighbours'."
        )
    if (placement, how) == ("sharded", "full"):
        raise ConfigError(
            f"data.placement = 'sharded' needs several examples, but {data.source} is a whole graph. Use "
            "shared, or data.graph = 'clusters' or 'neighbours'."
        )
    if how == "clusters" and data.train.graph.clusters is None:
        raise ConfigError(
            f"data.graph = 'clusters' needs a graph cut into clusters, but {data.source} was prepared whole: "
            f"istmpi prepare graph {data.source} DST.h5 --clusters N."
        )
    train = replace(data.train, how=how, fanout=tuple(fanout))
    return replace(data, splits={**data.splits, "train": train})


def open_graph(file: PreparedFile) -> Opened:
    (x, *guards), (indices, *others), indptr = (
        file.guarded("x"),
        file.guarded("indices"),
        file.mapped("indptr"),
    )
    labels, clusters = (
        file.mapped("labels").view(np.ndarray),
        file.mapped("clusters") if file.has("clusters") else None,
    )
    graph = Graph(x, Ragged(indptr, (indices,)), labels, clusters, (*guards, *others))
    return {
        split: GraphSplit(graph, file.mapped(f"{split}/nodes").view(np.ndarray))
        for split in file.splits
    }, {}
