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


class TiedItems(nn.Module):
    """A two-tower product: the scores are those of an embedding's rows."""

    DEALS = ("units",)
    TOKENS = True

    def __init__(self, shape, outputs, units=12):
        super().__init__()
        self.items = nn.Embedding(outputs, units)

    def forward(self, x):
        return torch.tanh(self.items(x)) @ self.items.weight.t()


class Products(nn.Module):
    """Sums of products of units, without a weight."""

    DEALS = ("units",)

    def __init__(self, features, outputs, units=6):
        super().__init__()
        self.one, self.other = nn.Linear(features, outputs * units), nn.Linear(features, outputs * units)
        self.outputs = outputs

    def forward(self, x):
        shape = len(x), self.outputs, -1
        return (torch.tanh(self.one(x)).view(shape) * self.other(x).view(shape)).sum(-1)


class Recurrent(nn.Module):
    DEALS = ("hidden",)
    TOKENS = True
    KIND = nn.LSTM

    def __init__(self, shape, outputs, hidden=6):
        super().__init__()
        self.table, self.last = nn.Embedding(outputs, 4), nn.Linear(2 * hidden, outputs)
        self.layers = self.KIND(4, hidden, 2, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.last(self.layers(self.table(x))[0])


class Gated(Recurrent):
    KIND = nn.GRU


class Projected(nn.Module):
    DEALS = ("hidden", "projected")

    def __init__(self, features, outputs, hidden=16, projected=6):
        super().__init__()
        self.layer = nn.LSTM(2, hidden, batch_first=True, proj_size=projected)
        self.last = nn.Linear(projected, outputs)

    def forward(self, x):
        return self.last(self.layer(x.view(len(x), -1, 2))[0][:, -1])


class Cells(nn.Module):
    DEALS = ("hidden",)

    def __init__(self, features, outputs, hidden=6):
        super().__init__()
        self.cell, self.last = nn.GRUCell(2, hidden), nn.Linear(hidden, outputs)

    def forward(self, x):
        state = None
        for part in x.view(len(x), -1, 2).unbind(1):
            state = self.cell(part, state)
        return self.last(state)


class Attending(nn.Module):
    """Attention whose keys and values have widths of their own."""

    DEALS = ("keys", "values", "hidden")

    def __init__(self, features, outputs, keys=6, values=8, hidden=10):
        super().__init__()
        self.key, self.value = nn.Linear(2, keys), nn.Linear(2, values)
        self.query = nn.Linear(2, 4)
        self.attend = nn.MultiheadAttention(4, 2, kdim=keys, vdim=values, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(4, 2, hidden, 0.0, batch_first=True, norm_first=True)
        self.last = nn.Linear(4, outputs)

    def forward(self, x):
        parts = x.view(len(x), -1, 2)
        made, _ = self.attend(self.query(parts), torch.tanh(self.key(parts)), torch.tanh(self.value(parts)))
        return self.last(self.layer(made).mean(1))


class ByHand(nn.Module):
    """Attention of heads that are einsums over parameters."""

    DEALS = ("heads",)

    def __init__(self, features, outputs, heads=4):
        super().__init__()
        self.into = nn.Parameter(torch.randn(3, heads, 2, 3))
        self.out = nn.Parameter(torch.randn(heads, 3, outputs))

    def forward(self, x):
        q, k, v = torch.einsum("btf,khfd->kbhtd", x.view(len(x), -1, 2), self.into)
        scores = torch.einsum("bhtd,bhsd->bhts", q, k).softmax(-1)
        return torch.einsum("bhts,bhsd,hdo->bto", scores, v, self.out).mean(1)


class Experts(nn.Module):
    """A mean over experts, whose weights a softmax over them makes, of what each one's units add up."""

    DEALS = ("experts", "hidden")

    def __init__(self, features, outputs, experts=4, hidden=6):
        super().__init__()
        self.router = nn.Linear(features, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, features, hidden))
        self.down = nn.Parameter(torch.randn(experts, hidden, outputs))

    def forward(self, x):
        made = torch.einsum("beh,eho->beo", torch.relu(torch.einsum("bf,efh->beh", x, self.up)), self.down)
        return (self.router(x).softmax(-1).unsqueeze(-1) * made).sum(1)


class Summed(Experts):
    """A sum over experts: each has a gate of its own."""

    def forward(self, x):
        made = torch.relu(torch.einsum("bf,efh->beh", x, self.up))
        return torch.einsum("be,beh,eho->bo", self.router(x).sigmoid(), made, self.down)


class Said(Experts):
    """A mean that the trace cannot see, for the weights are divided by their sum."""

    SUMS = {"down": "mean"}
    DEALS = ("experts",)

    def __init__(self, features, outputs, experts=4):
        super().__init__(features, outputs, experts, 3)

    def forward(self, x):
        gates = self.router(x).exp()
        gates = gates / gates.mean(-1, keepdim=True) / gates.shape[-1]
        made = torch.relu(torch.einsum("bf,efh->beh", x, self.up))
        return torch.einsum("beh,eho->bo", made * gates.unsqueeze(-1), self.down)


class Normed(nn.Module):
    """A weight norm over units, and the older kind of it."""

    DEALS = ("hidden", "more")

    def __init__(self, features, outputs, hidden=6, more=8):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.second = nn.utils.parametrizations.weight_norm(nn.Linear(hidden, more))
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(more, outputs))

    def forward(self, x):
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))


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
