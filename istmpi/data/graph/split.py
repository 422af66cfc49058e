"""A graph whose nodes have features and labels, and batches of it: all of it, unions of clusters, sampled neighbours.

An example is the whole graph, a cluster, or a training node with what is sampled around it, as a run says
(`data.graph`). Scores are always of the whole graph.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from istmpi import rng
from istmpi.data.batch import Batch
from istmpi.data.dataset import Dataset, Split
from istmpi.data.holdout import divided
from istmpi.data.moments import Normalisation
from istmpi.data.sparse.split import Ragged
from istmpi.errors import ConfigError
from istmpi.tasks import GRAPH_TASKS, OFF

GRAPH_BATCHES = ("full", "clusters", "neighbours")
FANOUT = (10, 10, 10)
"""Neighbours that are sampled around each node, hop by hop, where nobody says how many."""
SAMPLE = 4096
"""Nodes, and lists of neighbours, of which a graph's fingerprint is made where it has more."""
TRIED = 8
"""Batches of which a mean size is made."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes with features and labels, and for each node the nodes that it hears from; all may be memory maps."""

    x: np.ndarray
    """``[n, features]`` float32."""
    neighbours: Ragged
    """For each node, ascending int32, without itself."""
    labels: np.ndarray
    """``[n]`` int64, or ``[n, outputs]`` uint8 of zeros and ones."""
    clusters: np.ndarray | None = None
    """The number of each node's cluster, ``[n]`` int32, where it was cut."""
    guards: tuple[Callable[..., None] | None, Callable[..., None] | None] = (None, None)
    """They are told of rows of ``x``, and of places in the lists of neighbours, before these are read."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def edges(self) -> int:
        """Pairs of a node and one that it hears from: an edge of an undirected graph is two."""
        return int(self.neighbours.offsets[-1])

    def features(self, nodes: np.ndarray) -> np.ndarray:
        """Copies of the features of some nodes."""
        if self.guards[0] is not None:
            self.guards[0](nodes)
        return self.x.view(np.ndarray).take(nodes, axis=0)

    def heard(self, nodes: np.ndarray) -> Ragged:
        """The nodes that each of some nodes hears from."""
        return self.neighbours.take(nodes, self.guards[1:])

    @cached_property
    def whole(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features, offsets and columns of all nodes, in memory once for all splits."""
        nodes = np.arange(len(self))
        lists = self.heard(nodes)
        return self.features(nodes), lists.offsets.astype(np.int64), lists.arrays[0].astype(np.int64)

    @cached_property
    def members(self) -> Ragged:
        """The nodes of each cluster."""
        order = np.argsort(self.clusters, kind="stable")
        counts = np.bincount(self.clusters)
        return Ragged(np.concatenate([[0], np.cumsum(counts)]), (order,))


@dataclass(eq=False)
class GraphSplit(Split):
    """Some nodes of a graph, in batches that one asks for: ``how`` is one of `GRAPH_BATCHES`.

    A batch's inputs are features ``[n, features]`` of its nodes, where the list of neighbours of each begins and the
    last one ends ``[n + 1]``, and these neighbours by their place in the batch. Its targets are the labels of the
    split's nodes among them, `OFF` for others; its examples are counted as such nodes.
    """

    graph: Graph
    nodes: np.ndarray
    """Ascending int64."""
    how: str = "full"
    fanout: Sequence[int] = FANOUT

    def batch(self, indices: np.ndarray, key: int | None = None) -> Batch:
        """Of the whole graph, of the clusters ``indices``, or of those of the split's nodes and what is sampled.

        What the key seeds is the sample; without one all neighbours are taken. What is asked for twice is there once.
        """
        if self.how == "full":
            return self._whole
        indices = np.unique(indices)
        if self.how == "clusters":
            nodes = np.sort(self.graph.members.take(indices).arrays[0])
            return self._of(nodes, self.nodes, (self.graph.features(nodes), *induced(self.graph, nodes)))
        seeds = self.nodes[indices]
        nodes, offsets, columns = sampled(self.graph, seeds, self.fanout, key)
        return self._of(nodes, seeds, (self.graph.features(nodes), offsets, columns))

    @cached_property
    def _whole(self) -> Batch:
        return self._of(np.arange(len(self.graph)), self.nodes, self.graph.whole)

    def _of(self, nodes: np.ndarray, scored: np.ndarray, inputs: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Batch:
        import torch

        labels = self.graph.labels[nodes]
        on = np.isin(nodes, scored, assume_unique=True)
        if labels.ndim == 1:
            targets = np.where(on, labels, OFF)
        else:
            targets = np.where(on[:, None], labels.astype(np.int8), np.int8(OFF))
        return Batch(tuple(map(torch.from_numpy, inputs)), torch.from_numpy(targets), int(on.sum()))

    def labels(self) -> np.ndarray:
        """Of the split's nodes where these are examples and have one each; else zeros."""
        if self.how == "neighbours" and self.graph.labels.ndim == 1:
            return self.graph.labels[self.nodes]
        count = {"full": 1, "neighbours": len(self.nodes)}.get(self.how)
        return np.broadcast_to(np.int64(0), len(self.graph.members) if count is None else count)

    def divided(self, fraction: float, seed: int) -> tuple[GraphSplit, GraphSplit]:
        """Of the split's nodes; the edges stay as they are, as between training and test nodes."""
        labels = self.graph.labels[self.nodes]
        parts = divided(len(self.nodes), fraction, seed, labels if labels.ndim == 1 else None)
        train, validation = (self.nodes[part] for part in parts)
        return replace(self, nodes=train), GraphSplit(self.graph, validation)

    def size_of_example(self, batch: int, seed: int) -> tuple[float, float]:
        """Nodes and edges of a batch of so many examples, for each of these: of the whole graph, or a mean over some.

        The same on every machine, and whole numbers of the whole graph.
        """
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

    def normalised_by(self, normalisation: Normalisation | None) -> GraphSplit:
        assert normalisation is None
        return self

    def reshaped(self, shape: tuple[int, ...]) -> GraphSplit:
        """The same: a node has no shape but its number of features."""
        assert tuple(shape) == self.graph.x.shape[1:], (shape, self.graph.x.shape)
        return self

    @cached_property
    def labels_checksum(self) -> int:
        checksum = zlib.crc32(np.ascontiguousarray(self.nodes, "<i8"))
        return zlib.crc32(np.ascontiguousarray(self.graph.labels[self.nodes]), checksum)

    @cached_property
    def features_checksum(self) -> int:
        """CRC-32 of features and neighbours of all nodes where they are few, else of the same sample everywhere.

        Guards are not asked.
        """
        graph, nodes = self.graph, np.arange(len(self.graph))
        if len(nodes) > SAMPLE:
            drawn = rng.bits(rng.key("fingerprint"), 0, SAMPLE) % np.uint64(len(nodes))
            nodes = np.sort(drawn).astype(np.int64)
        checksum = 0 if graph.clusters is None else zlib.crc32(np.ascontiguousarray(graph.clusters, "<i4"))
        for start in range(0, len(nodes), 64):
            part = nodes[start : start + 64]
            lists = graph.neighbours.take(part)
            for array in (graph.x[part], lists.offsets.astype("<i8"), lists.arrays[0].astype("<i4")):
                checksum = zlib.crc32(np.ascontiguousarray(array), checksum)
        return checksum


def induced(graph: Graph, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The edges between some nodes, which are ascending: where each node's list begins, and neighbours by place."""
    lists = graph.heard(nodes)
    found = lists.arrays[0]
    places = np.searchsorted(nodes, found)
    inside = nodes[np.minimum(places, len(nodes) - 1)] == found
    ends = np.concatenate([[0], np.cumsum(inside)])[lists.offsets]
    return ends, places[inside]


def sampled(
    graph: Graph, seeds: np.ndarray, fanout: Sequence[int], key: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes around some seeds, ascending, and the edges that were sampled, as `induced` gives them.

    A seed hears from ``fanout[0]`` of its neighbours, each of these that is new from ``fanout[1]`` of its own, and so
    on, drawn evenly without replacement; where there are no more all are taken. The last ones hear from nobody.
    """
    known = np.sort(seeds)
    frontier, listeners, heard = known, [], []
    for hop, most in enumerate(fanout):
        lists = graph.heard(frontier)
        found, counts = lists.arrays[0], np.diff(lists.offsets)
        of = np.repeat(np.arange(len(frontier)), counts)
        if key is not None:
            drawn = rng.bits(rng.key(key, "neighbours", hop), 0, len(found))
            order = np.lexsort((drawn, of))  # each list in a random order
            found = found[order[np.arange(len(found)) - lists.offsets[of] < most]]
            of = np.repeat(np.arange(len(frontier)), np.minimum(counts, most))
        listeners.append(frontier[of])
        heard.append(found)
        frontier = np.setdiff1d(found, known)
        known = np.union1d(known, frontier)
    rows, columns = (np.searchsorted(known, np.concatenate(of)) for of in (listeners, heard))
    order = np.lexsort((columns, rows))
    counts = np.bincount(rows, minlength=len(known))
    return known, np.concatenate([[0], np.cumsum(counts)]), columns[order]


def batched(data: Dataset, how: str, fanout: Sequence[int]) -> Dataset:
    """The same graph whose training examples are what ``how`` says, other data as they are."""
    if data.task not in GRAPH_TASKS:
        if (how, tuple(fanout)) != (GRAPH_BATCHES[0], FANOUT):
            name, value = ("graph", how) if how != GRAPH_BATCHES[0] else ("fanout", list(fanout))
            raise ConfigError(
                f"data.{name} = {value!r} is for graphs, but {data.source} is of kind {data.kind}. Leave it out."
            )
        return data
    if how == "clusters" and data.train.graph.clusters is None:
        raise ConfigError(
            f"data.graph = 'clusters' needs a graph that was cut, but {data.source} was prepared whole: "
            f"istmpi prepare graph {data.source} DST.h5 --clusters N."
        )
    train = replace(data.train, how=how, fanout=tuple(fanout))
    return replace(data, splits={**data.splits, "train": train})
