"""Networks as users write them, for the tests of what is found out about them: they know nothing of istmpi."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional


class Convolutional(nn.Module):
    """Two convolutions, normalised over the batch, and two dense layers behind a flattening."""

    def __init__(self, shape, outputs, channels=(16, 32), hidden=64):
        super().__init__()
        depth, height, width = shape
        self.first = nn.Conv2d(depth, channels[0], 3, padding=1)
        self.norm = nn.BatchNorm2d(channels[0])
        self.second = nn.Conv2d(channels[0], channels[1], 3, padding=1)
        self.dense = nn.Linear(channels[1] * (height // 4) * (width // 4), hidden)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 2)
        x = functional.max_pool2d(functional.relu(self.second(x)), 2)
        return self.last(functional.relu(self.dense(x.flatten(1))))


class Attention(nn.Module):
    """Blocks of fused attention and a gated feed-forward layer on a residual stream."""

    def __init__(self, shape, outputs, heads=8, head_dim=16, embed=32, hidden=64, depth=2):
        super().__init__()
        self.heads = heads
        self.embed = nn.Linear(shape[-1], embed)
        self.norms = nn.ModuleList(nn.LayerNorm(embed) for _ in range(depth))
        self.qkv = nn.ModuleList(nn.Linear(embed, 3 * heads * head_dim) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(heads * head_dim, embed) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(embed, 2 * hidden) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(hidden, embed) for _ in range(depth))
        self.last = nn.Linear(embed, outputs)

    def forward(self, x):
        x = self.embed(x)
        for norm, qkv, out, up, down in zip(self.norms, self.qkv, self.out, self.up, self.down):
            batch, length, _ = x.shape
            q, k, v = qkv(norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            heads = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
            x = x + out(heads.reshape(batch, length, -1))
            gate, values = up(x).chunk(2, -1)
            x = x + down(functional.silu(gate) * values)
        return self.last(x.mean(1))


class Interleaved(nn.Module):
    """A gated layer whose gates and values take turns, and a weight that two layers share."""

    def __init__(self, features, outputs, hidden=12, wide=10):
        super().__init__()
        self.up = nn.Linear(features, 2 * hidden)
        self.inner = nn.Linear(hidden, wide)
        self.back = nn.Linear(wide, hidden, bias=False)
        self.back.weight = nn.Parameter(torch.randn(hidden, wide))
        self.again = nn.Linear(wide, hidden, bias=False)
        self.again.weight = self.back.weight
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        gate, values = self.up(x).unflatten(-1, (-1, 2)).unbind(-1)
        x = torch.sigmoid(gate) * values
        wide = torch.relu(self.inner(x))
        return self.last(x + self.back(wide) + self.again(wide**2))


class Grouped(nn.Module):
    """A normalisation over groups of channels, which are not interchangeable."""

    def __init__(self, shape, outputs, channels=16):
        super().__init__()
        self.conv = nn.Conv2d(shape[0], channels, 3)
        self.norm = nn.GroupNorm(4, channels)
        self.last = nn.Linear(channels, outputs)

    def forward(self, x):
        return self.last(functional.relu(self.norm(self.conv(x))).mean((2, 3)))


class Multihead(nn.Module):
    """torch's own attention, which divides its width by the heads."""

    def __init__(self, shape, outputs, embed=32, heads=4):
        super().__init__()
        self.first = nn.Linear(shape[-1], embed)
        self.attention = nn.MultiheadAttention(embed, heads, batch_first=True)
        self.last = nn.Linear(embed, outputs)

    def forward(self, x):
        x = self.first(x)
        return self.last(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Joined(nn.Module):
    """A width that is added to another on one axis: no axis is a multiple of it."""

    def __init__(self, features, outputs, hidden=8):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.last = nn.Linear(hidden + features, outputs)

    def forward(self, x):
        return self.last(torch.cat([torch.relu(self.first(x)), x], dim=1))


class Square(nn.Module):
    """Takes no narrow width but squares."""

    def __init__(self, features, outputs, hidden=16):
        super().__init__()
        if int(hidden**0.5) ** 2 != hidden:
            raise ValueError(f"{hidden} is no square")
        self.first = nn.Linear(features, hidden)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Silent(nn.Module):
    """Its hidden units never reach the outputs."""

    def __init__(self, features, outputs, hidden=8):
        super().__init__()
        self.first = nn.Linear(features, 3 * hidden)
        self.last = nn.Linear(features, outputs)

    def forward(self, x):
        return self.last(x) + 0 * self.first(x).sum()


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
    """Numbers that are looked up in two tables, one of which is multiplied by, too; a matrix of two factors."""

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
                attended = functional.scaled_dot_product_attention(q, k, v)
                x = x + rest[0](attended.transpose(1, 2).flatten(2))
            elif kind == "batch":
                x = torch.relu(rest[0](first(x).transpose(1, 2)).transpose(1, 2))
            elif kind == "recurrent":
                x = first(x)[0]
            else:
                x = torch.tanh(first(x))
        return self.last(x.mean(1))


class NoDefault(nn.Module):
    """An argument that nobody gives."""

    def __init__(self, features, outputs, hidden):
        super().__init__()
        self.last = nn.Linear(features, outputs)


class OtherOutputs(nn.Module):
    """One output too few."""

    def __init__(self, features, outputs, hidden=8):
        super().__init__()
        self.last = nn.Linear(features, outputs - 1)

    def forward(self, x):
        return self.last(x)


class Failing(nn.Module):
    """Its forward fails."""

    def __init__(self, features, outputs, hidden=8):
        super().__init__()
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.last(x)


class Plain(nn.Module):
    """What istmpi calls an mlp, with the same names of layers; dropout is none of it."""

    def __init__(self, features, outputs, hidden=(13, 11), norm="batch", bias=False, output_norm=True):
        super().__init__()
        before = features
        for number, width in enumerate(hidden, 1):
            layers = {"linear": nn.Linear(before, width, bias=bias)}
            if norm != "none":
                layers["norm"] = nn.BatchNorm1d(width) if norm == "batch" else nn.LayerNorm(width)
            stage = nn.Sequential(OrderedDict(layers, activation=nn.ReLU()))
            self.add_module(f"hidden{number}", stage)
            before = width
        layers = {"linear": nn.Linear(before, outputs, bias=bias)}
        if output_norm:
            layers["norm"] = nn.BatchNorm1d(outputs, affine=False)
        self.labels = nn.Sequential(OrderedDict(layers))

    def forward(self, x):
        for stage in self.children():
            x = stage(x)
        return x


class Shaken(nn.Module):
    """Dropout, a table that the constructor computes, a layer that is not used, and tied weights."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.inner = nn.Linear(hidden, hidden)
        self.tied = nn.Linear(hidden, hidden, bias=False)
        self.tied.weight = self.inner.weight
        self.norm = nn.BatchNorm1d(hidden, eps=1e-3)
        self.dropout = nn.Dropout(0.3)
        self.gain = nn.Parameter(torch.full((hidden,), 0.5))
        self.unused = nn.Linear(3, 4)
        self.last = nn.Linear(hidden, outputs)
        self.register_buffer("table", torch.arange(features) / features, persistent=False)

    def forward(self, x):
        x = torch.relu(self.first(x + self.table))
        x = self.dropout(torch.relu(self.norm(self.inner(x))))
        return self.last(self.gain * torch.tanh(self.tied(x)))


class Odd(nn.Module):
    """One thing that cannot be trained, by the name of it."""

    def __init__(self, features, outputs, what, hidden=8):
        super().__init__()
        self.what = what
        self.first = nn.Linear(features, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.last = nn.Linear(hidden, outputs)
        if what == "frozen":
            self.first.weight.requires_grad_(False)
        elif what == "scalar":
            self.scale = nn.Parameter(torch.tensor(1.0))
        elif what == "computed":
            self.scale = nn.Parameter(torch.linspace(1, 2, features))
        elif what == "random buffer":
            self.register_buffer("noise", torch.randn(features))
        elif what == "counting":
            self.register_buffer("count", torch.zeros(1))
        elif what == "complex":
            self.scale = nn.Parameter(torch.ones(features, dtype=torch.complex64))
        elif what == "lazy":
            self.last = nn.LazyLinear(outputs)
        elif what == "by hand":
            self.weight = nn.Parameter(torch.randn(hidden, hidden))

    def forward(self, x):
        if self.what == "counting":
            self.count.add_(1)
        x = torch.relu(self.norm(self.first(x)))
        x = self.norm(x) if self.what == "twice" else x
        return self.last(x @ self.weight if self.what == "by hand" else x)


class Steps(nn.Module):
    """Takes even widths alone."""

    def __init__(self, features, outputs, hidden=8):
        super().__init__()
        if hidden > 7 and hidden % 2:
            raise ValueError(f"{hidden} is odd")
        self.first = nn.Linear(features, hidden)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Choosing(nn.Module):
    """Defaults that neither JSON nor pickle knows."""

    def __init__(self, features, outputs, hidden=8, activation=nn.ReLU, shift=lambda x: x + 1, names=("a", "b")):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.activation, self.shift = activation(), shift
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.last(self.shift(self.activation(self.first(x))))


class InPlace(nn.Module):
    """An activation between a product and its normalisation that changes the product's own output; a call by name."""

    def __init__(self, features, outputs, hidden=8):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.inner = nn.Linear(hidden, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        x = self.norm(torch.relu_(self.inner(torch.tanh(self.first(x)))))
        return self.last(input=x)


class Fixed(nn.Module):
    """It has no width."""

    def __init__(self, features, outputs):
        super().__init__()
        self.last = nn.Linear(features, outputs)

    def forward(self, x):
        return self.last(x)


NOT_A_NETWORK = 3
