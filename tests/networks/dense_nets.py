"""Networks of dense layers, as users write them: they know nothing of istmpi."""

import torch
from torch import nn


class ResidualBlock(nn.Module):
    """A hidden layer that adds to its input."""

    def __init__(self, stream, hidden):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(stream), nn.Linear(stream, hidden), nn.Linear(hidden, stream)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class ResidualMlp(nn.Module):
    """Blocks on a stream, so many as an argument says."""

    block = ResidualBlock

    def __init__(self, features, outputs, stream=6, hidden=12, depth=3):
        super().__init__()
        self.into = nn.Linear(features, stream)
        self.blocks = nn.ModuleList(self.block(stream, hidden) for _ in range(depth))
        self.last = nn.Linear(stream, outputs)

    def forward(self, x):
        x = self.into(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class PairsBlock(ResidualBlock):
    """A block that takes units in pairs, and single precision alone, as grouped products do."""

    def forward(self, x):
        if x.dtype == torch.float64 or self.up.out_features % 2:
            raise RuntimeError("strides should be multiple of 8 bytes")
        return super().forward(x)


class InPairs(ResidualMlp):
    """So many such blocks."""

    block = PairsBlock


class TwoExits(nn.Module):
    """A classifier behind each of two hidden layers."""

    def __init__(self, features, outputs, hidden=(12, 14)):
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden[0]), nn.Linear(*hidden)
        self.early, self.last = nn.Linear(hidden[0], outputs), nn.Linear(hidden[1], outputs)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return [self.early(x), self.last(torch.relu(self.second(x)))]
