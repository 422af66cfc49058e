"""Networks of graphs, as users write them: they know nothing of istmpi."""

import torch
from torch import nn


class FixedGraph(nn.Module):
    """Graph convolutions on one graph, a ring, whose adjacency is a buffer; all its nodes make an example."""

    def __init__(self, shape, outputs, hidden=(12, 14)):
        super().__init__()
        ring = torch.eye(shape[0]).roll(1, 0)
        self.register_buffer("adjacency", (ring + ring.T + torch.eye(shape[0])) / 3)
        self.first, self.second = nn.Linear(shape[1], hidden[0]), nn.Linear(*hidden, bias=False)
        self.last = nn.Linear(hidden[1], outputs)

    def forward(self, x):
        x = torch.relu(self.adjacency @ self.first(x))
        return self.last(torch.relu(self.adjacency @ self.second(x)).mean(1))


def edges(offsets, columns):
    """The node that hears, and the one that is heard, of each edge."""
    return torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff()), columns


class Convolution(nn.Module):
    """The mean over neighbours, by index_add."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.randn(features, hidden) / 3), nn.Linear(hidden, outputs)

    @staticmethod
    def heard(x, offsets, columns):
        to, by = edges(offsets, columns)
        total = torch.zeros_like(x).index_add(0, to, x[by])
        return total / offsets.diff().clamp(min=1)[:, None]

    def forward(self, x, offsets, columns):
        x = x @ self.weight
        x = torch.relu(x + self.heard(x, offsets, columns))
        return self.last(x + self.heard(x, offsets, columns))
