"""Networks whose sums over units hide their factor: roots of a width, means by hand, branches, sums by other names."""

import random

import torch
from torch import nn
from torch.nn import functional


class EqualisedRates(nn.Module):
    """Weights that each pass multiplies by the root of 2 / inputs; two layers share one width."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        for layer in (self.first, self.second, self.last):
            x = torch.tanh(functional.linear(x, layer.weight * (2 / layer.in_features) ** 0.5, layer.bias))
        return x


class ScoresByHand(nn.Module):
    """Attention whose scores are divided by the root of the width of a head."""

    def __init__(self, shape, outputs, width=8):
        super().__init__()
        self.q, self.k = nn.Linear(shape[-1], width), nn.Linear(shape[-1], width)
        self.v, self.last = nn.Linear(shape[-1], 5), nn.Linear(5, outputs)

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        scores = (q @ k.transpose(1, 2)) / q.shape[-1] ** 0.5
        return self.last((scores.softmax(-1) @ self.v(x)).mean(1))


class Units(nn.Module):
    """Units with an output vector each, joined by `joined`; the base is a sum divided by their number."""

    def __init__(self, features, outputs, units=12):
        super().__init__()
        self.units, self.outputs = units, outputs
        self.layer = nn.Linear(features, units * outputs)

    def forward(self, x):
        return self.joined(torch.tanh(self.layer(x)).unflatten(1, (self.units, self.outputs)))

    def joined(self, x):
        return x.sum(1) / self.units


class MeanTimesWidth(Units):
    """And the last of the cumulated sums."""

    def joined(self, x):
        return x.mean(1) * self.units + x.cumsum(1)[:, -1]


class SumOfLogarithms(Units):
    """The logarithm of a product: a sum that exp and log hide."""

    def joined(self, x):
        return (2 + x).prod(1).log()


class TwoGates(nn.Module):
    """A product of two softmaxes over the units: no mean."""

    def __init__(self, features, outputs, units=12):
        super().__init__()
        self.outputs = outputs
        self.first, self.second = nn.Linear(features, units), nn.Linear(features, units)
        self.values = nn.Linear(features, units * outputs)

    def forward(self, x):
        weights = self.first(x).softmax(-1) * self.second(x).softmax(-1)
        return 10 * (weights[..., None] * self.values(x).unflatten(1, (-1, self.outputs))).sum(1)


class RenormalisedExperts(nn.Module):
    """Gates over the best two, scattered among zeros, as in Mixtral: a mean over experts."""

    def __init__(self, features, outputs, experts=8, hidden=6):
        super().__init__()
        self.router = nn.Linear(features, experts)
        self.first = nn.Parameter(torch.randn(experts, features, hidden) / features**0.5)
        self.second = nn.Parameter(torch.randn(experts, hidden, outputs) / hidden**0.5)

    def forward(self, x):
        scores = self.router(x)
        best, chosen = scores.topk(2, -1)
        gates = torch.zeros_like(scores).scatter(-1, chosen, best.softmax(-1))
        hidden = torch.einsum("bf,efh->beh", x, self.first).relu()
        return torch.einsum("be,beh,eho->bo", gates, hidden, self.second)


class RareHead(nn.Module):
    """A head that few inputs reach."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.first, self.usual = nn.Linear(features, hidden), nn.Linear(hidden, outputs)
        self.rare = nn.Linear(hidden, outputs)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.rare(h) if x.abs().max() > 20 else self.usual(h)


class ChosenFeatures(nn.Module):
    """Features chosen by `random`."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.chosen = random.sample(range(features), 4)
        self.first, self.last = nn.Linear(4, hidden), nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x[:, self.chosen])))


class Distances(nn.Module):
    """Norms, distances and angles of units."""

    def __init__(self, features, outputs, units=8):
        super().__init__()
        self.first, self.last = nn.Linear(features, units), nn.Linear(units, outputs)
        self.places = nn.Parameter(torch.randn(outputs, units))

    def forward(self, x):
        made = self.first(x)
        angle = functional.cosine_similarity(made.unsqueeze(1), self.places, dim=-1)
        far = torch.cdist(made, self.places) + made.norm(dim=-1, keepdim=True)
        near = (made.unsqueeze(1) * self.places).logsumexp(-1)
        first = functional.pairwise_distance(made, self.places[0])[:, None]
        return angle + far + near + first + self.last(functional.normalize(made, dim=-1))


class Averaged(nn.Module):
    """Means over units, which are as large in a subnet."""

    def __init__(self, features, outputs, units=8):
        super().__init__()
        self.first, self.gain = nn.Linear(features, units * outputs), nn.Parameter(torch.ones(units))
        self.outputs = outputs

    def forward(self, x):
        made = torch.tanh(self.first(x)).view(len(x), self.outputs, -1)
        attention = (made * self.gain).softmax(-1)
        return made.mean(-1) + (attention * made).sum(-1) + made.amax(-1)
