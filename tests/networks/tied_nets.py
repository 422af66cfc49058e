"""Networks with weights that are used twice, frozen, or a single number: they know nothing of istmpi."""

import torch
from torch import nn
from torch.nn import functional


class TiedAutoencoder(nn.Module):
    """An autoencoder whose decoder is its encoder's transpose, and a classifier behind it."""

    def __init__(self, features, outputs, hidden=14, code=12):
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, code)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        code = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.last(torch.tanh(functional.linear(code, self.second.weight.t())))


class TiedFilters(nn.Module):
    """A convolution and its transpose by the same filters."""

    def __init__(self, shape, outputs, channels=12):
        super().__init__()
        self.into, self.filters = nn.Conv2d(shape[0], 4, 1), nn.Conv2d(4, channels, 3)
        self.last = nn.Linear(4, outputs)

    def forward(self, x):
        x = torch.relu(self.filters(self.into(x)))
        return self.last(torch.relu(functional.conv_transpose2d(x, self.filters.weight)).mean((2, 3)))


class Lora(nn.Module):
    """Adapters of a low rank on a layer that is frozen."""

    def __init__(self, features, outputs, hidden=14, rank=12):
        super().__init__()
        self.first, self.trunk = nn.Linear(features, hidden), nn.Linear(hidden, hidden)
        self.a, self.b = nn.Linear(hidden, rank, bias=False), nn.Linear(rank, hidden, bias=False)
        self.last = nn.Linear(hidden, outputs)
        self.trunk.requires_grad_(False)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.last(torch.relu(self.trunk(x) + self.b(self.a(x))))


class LogitScale(nn.Module):
    """Logits times the exponential of one learnt number."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.first, self.last = nn.Linear(features, hidden), nn.Linear(hidden, outputs)
        self.logit_scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return self.last(torch.relu(self.first(x))) * self.logit_scale.exp()
