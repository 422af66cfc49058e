"""Small graphs as prepared files, the dense matrices that they stand for, and a network of them written naively."""

import numpy as np
import torch

from istmpi.data.graph.prepare import build_material, connect
from istmpi.data.graph.split import Graph
from istmpi.data.writer import write as write_file

NODES, FEATURES, CLASSES = 40, 9, 3


def made(seed=0, several=False, nodes=NODES, edges=70):
    """A graph with a node without edges, telling features, and clusters of unequal size; or a bag of words."""
    generator = np.random.default_rng(seed)
    pairs = generator.integers(0, nodes - 1, (2, edges))  # the last node has none
    neighbours, _, _ = connect(*pairs.astype(np.int64), nodes, False, "made")
    x = generator.normal(size=(nodes, FEATURES)).astype(np.float32)
    labels = np.arange(nodes) % CLASSES
    if several:
        labels = (generator.random((nodes, CLASSES)) < 0.5).astype(np.uint8)
    x[:, 0] += labels if labels.ndim == 1 else labels[:, 0]
    if several:
        x *= generator.random(x.shape) < 0.08
    clusters = np.sort(generator.integers(0, 5, nodes)).astype(np.int32)
    clusters[:5] = np.arange(5)
    return Graph(x, neighbours, labels, clusters)


def write(path, several=False, seed=0, nodes=NODES, edges=70):
    """A prepared file of such a graph, of which every other node is for training; returns its name."""
    graph = made(seed, several, nodes, edges)
    nodes = {"train": np.arange(0, nodes, 2), "test": np.arange(1, nodes, 2)}
    classes = None if several else tuple(map(str, range(CLASSES)))
    write_file("graph", build_material("made", CLASSES, classes, nodes, graph), path)
    return str(path)


def matrix(offsets, columns):
    """Edges as a dense matrix: row i has a one for each node that node i hears from."""
    found = torch.zeros(len(offsets) - 1, len(offsets) - 1, dtype=torch.float64)
    for node in range(len(offsets) - 1):
        for place in range(offsets[node], offsets[node + 1]):
            found[node, columns[place]] += 1
    return found


def naive_logits(model, weights, inputs, scale):
    """A forward pass with dense matrices; ``scale`` multiplies what the units of each group contribute to a sum."""
    x, offsets, columns = inputs
    heard, h, number = matrix(offsets, columns), x.double(), 0
    more = "products.{}.weight" if model == "gcn" else "own.{}.weight"
    while more.format(number) in weights:
        if number:
            h = torch.relu((h - h.mean(1, keepdim=True)) / (h.var(1, correction=0, keepdim=True) + 1e-5).sqrt())
            h = h * scale[f"hidden{number}"]
        if model == "gcn":
            both = heard + torch.eye(len(heard), dtype=torch.float64)
            root = torch.diag(both.sum(dim=1) ** -0.5)
            h = root @ both @ root @ h @ weights[f"products.{number}.weight"].T + weights[f"biases.{number}.bias"]
        else:
            mean = heard / heard.sum(dim=1, keepdim=True).clamp(min=1)
            own = h @ weights[f"own.{number}.weight"].T + weights[f"own.{number}.bias"]
            h = own + mean @ h @ weights[f"heard.{number}.weight"].T
        number += 1
    return h


class Matrix:
    """What a CSR matrix of scipy's is in a pickle, without scipy."""

    def __init__(self, offsets, columns, values, shape):
        self.indptr, self.indices, self.data = offsets.astype("i"), columns.astype("i"), values.astype("f")
        self._shape = shape
