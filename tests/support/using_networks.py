"""Networks that sum over units in calls of many kinds. ``DEALS``: the widths that are dealt out by default."""

import torch
import torch.nn.functional as F
from torch import nn


class Tied(nn.Module):
    """An autoencoder with tied weights, and a classifier behind it."""

    DEALS = ("hidden",)

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.encode, self.last = nn.Linear(features, hidden), nn.Linear(features, outputs)

    def forward(self, x):
        return self.last(F.linear(torch.relu(self.encode(x)), self.encode.weight.t()))


class TwoFactors(nn.Module):
    DEALS = ("one", "other")

    def __init__(self, features, outputs, one=4, other=6):
        super().__init__()
        self.one, self.other = nn.Linear(features, one), nn.Linear(features, other)
        self.both = nn.Bilinear(one, other, outputs)

    def forward(self, x):
        return self.both(torch.relu(self.one(x)), torch.tanh(self.other(x)))


class Distances(nn.Module):
    """Norms, distances and angles of units."""

    DEALS = ("units",)

    def __init__(self, features, outputs, units=8):
        super().__init__()
        self.first, self.last = nn.Linear(features, units), nn.Linear(units, outputs)
        self.places = nn.Parameter(torch.randn(outputs, units))

    def forward(self, x):
        made = self.first(x)
        angle = F.cosine_similarity(made.unsqueeze(1), self.places, dim=-1)
        far = torch.cdist(made, self.places) + made.norm(dim=-1, keepdim=True)
        near = (made.unsqueeze(1) * self.places).logsumexp(-1) + F.pairwise_distance(made, self.places[0])[:, None]
        return angle + far + near + self.last(F.normalize(made, dim=-1))


class Averaged(nn.Module):
    """Means over units, which are as large in a subnet."""

    DEALS = ("units",)

    def __init__(self, features, outputs, units=8):
        super().__init__()
        self.first, self.gain = nn.Linear(features, units * outputs), nn.Parameter(torch.ones(units))
        self.outputs = outputs

    def forward(self, x):
        made = torch.tanh(self.first(x)).view(len(x), self.outputs, -1)
        attention = (made * self.gain).softmax(-1)
        return (
            made.mean(-1) + (attention * made).sum(-1) + made.amax(-1) + F.layer_norm(made, made.shape[-1:])[..., 0] * 0
        )
