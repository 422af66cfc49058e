"""Networks that multiply and sum in their own way, as users write them: they know nothing of istmpi."""

import torch
from torch import nn


class Bilinear(nn.Module):
    """torch's own product of two inputs."""

    def __init__(self, features, outputs, left=12, right=14):
        super().__init__()
        self.left, self.right = nn.Linear(features, left), nn.Linear(features, right)
        self.both = nn.Bilinear(left, right, outputs)

    def forward(self, x):
        return self.both(torch.tanh(self.left(x)), torch.tanh(self.right(x)))


class Kan(nn.Module):
    """A curve on each edge, the sum of a few bumps."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.first, self.second = (
            nn.Parameter(torch.randn(after, before, 4) / 10)
            for before, after in ((features, hidden), (hidden, outputs))
        )

    def forward(self, x):
        for weight in (self.first, self.second):
            bumps = torch.exp(-((torch.tanh(x)[..., None] - torch.linspace(-1, 1, 4, dtype=x.dtype)) ** 2))
            x = torch.einsum("big,oig->bo", bumps, weight)
        return x


class Machine(nn.Module):
    """A factorisation machine for each output: half the square of a sum less the sum of squares."""

    def __init__(self, features, outputs, factors=12):
        super().__init__()
        self.linear = nn.Linear(features, outputs)
        self.factors = nn.Parameter(torch.randn(features, outputs, factors) / 5)

    def forward(self, x):
        sums = torch.einsum("bf,fok->bok", x, self.factors)
        squares = torch.einsum("bf,fok->bok", x**2, self.factors**2)
        return self.linear(x) + 0.5 * (sums**2 - squares).sum(-1)


class Vector(nn.Module):
    """A vector that multiplies and sums, for each class a multiple of what it says."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.first, self.vector = nn.Linear(features, hidden), nn.Parameter(torch.randn(hidden) / 3)
        self.last = nn.Linear(1, outputs)

    def forward(self, x):
        return self.last((torch.relu(self.first(x)) @ self.vector)[:, None])
