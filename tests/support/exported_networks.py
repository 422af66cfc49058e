"""Networks as users write them, for the tests of exports: what is shared, what has buffers, what cannot be traced."""

import torch
from torch import nn
from torch.nn import functional


class Sharing(nn.Module):
    """A module under two names, a weight in two modules, and buffers, one of which is no part of the state."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.inner = self.again = nn.Linear(hidden, hidden)
        self.tied = nn.Linear(hidden, hidden, bias=False)
        self.tied.weight = self.inner.weight
        self.last = nn.Linear(hidden, outputs)
        self.register_buffer("order", torch.arange(features - 1, -1, -1))
        self.register_buffer("table", torch.arange(features) / features, persistent=False)

    def forward(self, x):
        x = torch.relu(self.first(x[:, self.order] + self.table))
        x = torch.tanh(self.again(torch.tanh(self.inner(x))))
        return self.last(self.tied(x))


class Unrecorded(nn.Module):
    """A batch normalisation that keeps no running statistics of its own."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.norm = nn.BatchNorm1d(hidden, track_running_stats=False)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


class Deciding(nn.Module):
    """It takes a decision: on values, on the number of examples; or it uses that number as an integer."""

    def __init__(self, features, outputs, hidden=12, on="values"):
        super().__init__()
        self.on = on
        self.first = nn.Linear(features, hidden)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        x = self.first(x)
        if self.on == "length":
            return self.last(torch.relu(x + self.first.bias.expand(len(x), -1)))
        if x.amax() > 1e9 if self.on == "values" else x.shape[0] == 1:
            x = -x
        return self.last(torch.relu(x))


class Tied(nn.Module):
    """An autoencoder that uses the weight of a layer once more, and a classifier behind it."""

    def __init__(self, features, outputs, wide=14, hidden=12):
        super().__init__()
        self.first, self.encode = nn.Linear(features, wide), nn.Linear(wide, hidden)
        self.last = nn.Linear(wide, outputs)

    def forward(self, x):
        x = torch.relu(self.encode(torch.relu(self.first(x))))
        return self.last(functional.linear(x, self.encode.weight.t()))


class Gated(nn.Module):
    """Units with gates, which are computed from the weights that add the units up; and a matrix of no layer."""

    def __init__(self, features, outputs, hidden=12, wide=14):
        super().__init__()
        self.first, self.last = nn.Linear(features, wide), nn.Linear(hidden, outputs)
        self.matrix = nn.Parameter(torch.randn(wide, hidden) / 4)

    def forward(self, x):
        x = torch.relu(torch.relu(self.first(x)) @ self.matrix)
        return self.last(x * torch.sigmoid(4 * self.last.weight.sum(0)))
