"""Networks of all kinds of layers, for the tests of what their products are: they know nothing of istmpi."""

import math

import torch
from torch import nn
from torch.nn import functional


class Grouping(nn.Module):
    """Convolutions of groups, of which one width is the number, and one for each channel by itself."""

    def __init__(self, shape, outputs, groups=6, channels=8):
        super().__init__()
        self.first = nn.Conv2d(shape[0], 4 * groups, 3, stride=2)
        self.groups = nn.Conv2d(4 * groups, 2 * groups, 3, groups=groups, padding="same")
        self.up = nn.ConvTranspose2d(2 * groups, channels, 2, stride=2)
        self.alone = nn.Conv2d(channels, channels, 3, groups=channels, padding=1)
        self.last = nn.Linear(channels, outputs)

    def forward(self, x):
        x = functional.relu(self.up(functional.relu(self.groups(functional.relu(self.first(x))))))
        return self.last(functional.relu(self.alone(x)).mean((2, 3)))


class Tokens(nn.Module):
    """Look-ups in two tables, of which one also multiplies; a matrix of two factors; examples times each other."""

    def __init__(self, features, outputs, embed=12, hidden=20, rank=3):
        super().__init__()
        self.table = nn.Embedding(17, embed)
        self.bag = nn.EmbeddingBag(17, embed, mode="mean")
        self.inner = nn.Linear(embed, hidden)
        self.a = nn.Parameter(torch.randn(embed, rank))
        self.b = nn.Parameter(torch.randn(rank, hidden))
        self.last = nn.Linear(17, outputs)

    def forward(self, x):
        x = x.long().remainder(17)
        x = self.table(x).mean(1) * self.bag(x)
        x = torch.relu(self.inner(x)) @ (self.a @ self.b).T
        x = torch.softmax(x @ x.T, -1) @ x
        return self.last(functional.linear(x, self.table.weight))


class Streams(nn.Module):
    """Layers of one width whose outputs meet in one way or another, and a layer of a width of its own."""

    def __init__(self, shape, outputs, what, stream=12, hidden=8):
        super().__init__()
        self.what = what
        before = 2 * stream if what == "concatenated" else stream
        self.first = nn.Linear(shape[-1], stream)
        self.up = nn.Linear(stream, hidden)
        self.down = nn.Linear(hidden, stream)
        self.gate = nn.Linear(stream, stream)
        self.norm = nn.LayerNorm(stream)
        self.cell = {"lstm": nn.LSTM, "gru": nn.GRU}.get(what, nn.RNN)(stream, stream, batch_first=True)
        self.other = nn.Linear(shape[-1], stream)
        self.last = nn.Linear(before, outputs)

    def forward(self, x):
        given = x
        x = self.first(x)
        inner = self.down(torch.relu(self.up(self.norm(x))))
        if self.what == "residual":
            x = x + inner
        elif self.what == "in place":
            x += inner
        elif self.what == "normalised behind":
            x = self.norm(torch.relu(inner) + x)
        elif self.what == "highway":
            x = torch.lerp(x, inner, torch.sigmoid(self.gate(x)))
        elif self.what == "subtracted":
            x = x - inner * 0.5
        elif self.what == "later":
            x = self.down(torch.relu(self.up(x))).transpose(1, 2).contiguous().transpose(1, 2) * 0.1 + torch.tanh(x)
        elif self.what == "by matrix":
            x = torch.addmm(x.flatten(0, 1), torch.relu(self.up(x)).flatten(0, 1), self.down.weight.T).view_as(x)
        elif self.what == "around a cell":
            x = x + self.cell(x)[0]
        elif self.what == "parallel":
            x = inner + self.other(given)
        elif self.what == "gated":
            x = inner * torch.sigmoid(self.gate(inner))
        elif self.what == "concatenated":
            x = torch.cat([x, inner], -1)
        elif self.what in ("lstm", "gru", "rnn"):
            x = self.cell(inner)[0]
        elif self.what == "by hand":
            state = torch.zeros_like(x[:, 0])
            for step in x.unbind(1):
                keep = torch.sigmoid(self.gate(step) + self.down(torch.relu(self.up(state))))
                state = keep * state + (1 - keep) * torch.tanh(self.gate(step))
            x = state.unsqueeze(1)
        else:
            x = inner
        return self.last(x.mean(1))


class Added(nn.Module):
    """Attention that compares by two widths, one behind the other on an axis that has no parameter."""

    def __init__(self, shape, outputs, wide=12, hidden=8):
        super().__init__()
        self.first = nn.Linear(shape[-1], wide)
        self.second = nn.Linear(shape[-1], hidden)
        self.last = nn.Linear(shape[-1], outputs)

    def forward(self, x):
        compared = torch.cat([torch.relu(self.first(x)), torch.tanh(self.second(x))], -1)
        return self.last((torch.softmax(compared @ compared.transpose(1, 2), -1) @ x).mean(1))


class Rooted(nn.Module):
    """A product over as many numbers as the root of a width, which is no sum of products of widths."""

    def __init__(self, shape, outputs, hidden=16):
        super().__init__()
        self.first, self.last = nn.Linear(shape[-1], hidden), nn.Linear(hidden, outputs)
        self.numbers = math.isqrt(hidden)

    def forward(self, x):
        few = x.new_ones(len(x), self.numbers) @ x.new_ones(self.numbers, 1)
        return self.last(torch.relu(self.first(x)).mean(1)) + (few - self.numbers)


class Drawn(nn.Module):
    """Layers one after the other on ``[tokens, features]``, by the names of their kinds, each with a width."""

    def __init__(self, shape, outputs, kinds=("linear",), widths=(8,)):
        super().__init__()
        self.kinds, self.layers = kinds, nn.ModuleList()
        before = shape[-1]
        for kind, width in zip(kinds, widths):
            after = before if kind in ("gated", "attention", "normal") else width
            self.layers.append(nn.ModuleList(self._layers(kind, before, width)))
            before = after
        self.last = nn.Linear(before, outputs)

    @staticmethod
    def _layers(kind, before, width):
        if kind == "conv":
            return [nn.Conv1d(before, width, 3, padding=1, bias=False)]
        if kind == "transposed":
            return [nn.ConvTranspose1d(before, width, 3, padding=1)]
        if kind == "normal":
            return [nn.LayerNorm(before)]
        if kind == "gated":
            return [nn.Linear(before, 2 * width), nn.Linear(width, before, bias=False)]
        if kind == "attention":
            return [nn.Linear(before, 3 * 2 * width), nn.Linear(2 * width, before)]
        if kind == "batch":
            return [nn.Linear(before, width, bias=False), nn.BatchNorm1d(width)]
        if kind == "recurrent":
            return [nn.LSTM(before, width, batch_first=True)]
        return [nn.Linear(before, width)]

    def forward(self, x):
        for kind, layers in zip(self.kinds, self.layers):
            first, *rest = layers
            if kind in ("conv", "transposed"):
                x = functional.gelu(first(x.transpose(1, 2))).transpose(1, 2)
            elif kind == "gated":
                gate, values = first(x).chunk(2, -1)
                x = x + rest[0](torch.sigmoid(gate) * values)
            elif kind == "attention":
                q, k, v = (part.unflatten(-1, (-1, 2)).transpose(1, 2) for part in first(x).chunk(3, -1))
                x = x + rest[0](functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            elif kind == "batch":
                x = torch.relu(rest[0](first(x).transpose(1, 2)).transpose(1, 2))
            elif kind == "recurrent":
                x = first(x)[0]
            else:
                x = torch.tanh(first(x))
        return self.last(x.mean(1))
