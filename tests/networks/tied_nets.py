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


class Items(nn.Module):
    """Items that are looked up, and whose table makes the scores."""

    def __init__(self, features, outputs, units=12):
        super().__init__()
        self.items, self.mix = nn.Embedding(outputs, units), nn.Linear(units, units)

    def forward(self, x):
        x = self.items(x.mul(4).long().remainder(self.items.num_embeddings)).mean(1)
        return torch.tanh(self.mix(x)) @ self.items.weight.t()


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


class FrozenTrunk(nn.Module):
    """A first layer that is not trained."""

    def __init__(self, features, outputs, hidden=(12, 14)):
        super().__init__()
        self.trunk, self.second = nn.Linear(features, hidden[0]).requires_grad_(False), nn.Linear(*hidden)
        self.last = nn.Linear(hidden[1], outputs)

    def forward(self, x):
        return self.last(torch.relu(self.second(torch.relu(self.trunk(x)))))


class Sinusoids(nn.Module):
    """Places as a parameter that is computed and not trained."""

    def __init__(self, shape, outputs, hidden=12):
        super().__init__()
        angles = torch.arange(shape[0])[:, None] / 10.0 ** (torch.arange(shape[1]) / shape[1])
        self.places = nn.Parameter(torch.sin(angles), requires_grad=False)
        self.up, self.last = nn.Linear(shape[1], hidden), nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.last(torch.relu(self.up(x + self.places)).mean(1))


class LogitScale(nn.Module):
    """Logits times the exponential of one learnt number."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.first, self.last = nn.Linear(features, hidden), nn.Linear(hidden, outputs)
        self.logit_scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return self.last(torch.relu(self.first(x))) * self.logit_scale.exp()


class Temperature(nn.Module):
    """Attention with a learnt temperature of each head."""

    def __init__(self, shape, outputs, heads=12):
        super().__init__()
        self.heads, self.temperature = heads, nn.Parameter(torch.ones(heads, 1, 1))
        self.qkv, self.last = nn.Linear(shape[-1], 6 * heads), nn.Linear(2 * heads, outputs)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, 2)).permute(2, 0, 3, 1, 4)
        heads = torch.softmax(q @ k.transpose(2, 3) * self.temperature, -1) @ v
        return self.last(heads.transpose(1, 2).flatten(2).mean(1))
