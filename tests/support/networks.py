"""Networks as users write them, for the tests of what is found out about them: they know nothing of istmpi."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional
from wrong_networks import *  # noqa: F403 (networks of users are found here)
from wrong_networks import TwoLayers


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


class TwoTowers(nn.Module):
    """Two inputs, mapped by one network, and the products of all pairs."""

    def __init__(self, features, hidden=16):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, 4))

    def forward(self, left, right):
        return self.tower(left) @ self.tower(right).t()


class ReadsWeights(nn.Module):
    """A frozen layer whose weights are read, and an adapter beside it."""

    def __init__(self, features, outputs, rank=4):
        super().__init__()
        if torch.empty(0).is_meta:
            raise RuntimeError("weights cannot be read onto this device")
        self.trunk = nn.Linear(features, outputs)
        self.trunk.load_state_dict({"weight": torch.ones(outputs, features), "bias": torch.zeros(outputs)})
        self.trunk.requires_grad_(False)
        self.down, self.up = nn.Linear(features, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x):
        return self.trunk(x) + self.up(self.down(x))


class FrozenTrunk(nn.Module):
    """A layer that is not trained, in front of two that are."""

    def __init__(self, hidden=8):
        super().__init__()
        self.trunk = nn.Linear(5, 4).requires_grad_(False)
        self.first, self.last = nn.Linear(4, hidden), nn.Linear(hidden, 1)

    def forward(self, x):
        return self.last(self.first(self.trunk(x)).relu())


class Valued(FrozenTrunk):
    """A network whose constructor gives its frozen trunk a value, as one that reads a file does."""

    value = 1.0

    def __init__(self, hidden=8):
        super().__init__(hidden)
        nn.init.constant_(self.trunk.weight, Valued.value)


class Rows(Attention):
    """The same on the rows of images."""

    def forward(self, x):
        return super().forward(x.flatten(1, 2))


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
    """Half of the units come a second time, so that an axis grows by one and a half positions for each unit."""

    def __init__(self, features, outputs, hidden=8):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.half = hidden // 2
        self.last = nn.Linear(hidden + self.half, outputs)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.last(torch.cat([x, x[:, : self.half]], dim=1))


class Plain(nn.Module):
    """What istmpi calls an mlp, with the same names of layers; dropout is none of it."""

    def __init__(self, features, outputs, hidden=(13, 11), norm="batch", bias=False, output_norm=True):
        super().__init__()
        before = features
        for number, width in enumerate(hidden, 1):
            layers = {"linear": nn.Linear(before, width, bias=bias)}
            if norm != "none":
                layers["norm"] = nn.BatchNorm1d(width) if norm == "batch" else nn.LayerNorm(width)
            self.add_module(f"hidden{number}", nn.Sequential(OrderedDict(layers, activation=nn.ReLU())))
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


class Expanding(nn.Module):
    """Blocks of convolutions whose channels are a multiple of one width, each unit by itself in the middle one."""

    def __init__(self, shape, outputs, expand=6):
        super().__init__()
        layers = []
        for before, after in ((shape[0], 24), (24, 16), (16, 30)):
            hidden = after * expand
            layers += [nn.Conv2d(before, hidden, 1), nn.BatchNorm2d(hidden), nn.ReLU()]
            layers += [nn.Conv2d(hidden, hidden, 3, groups=hidden), nn.ReLU(), nn.Conv2d(hidden, after, 1)]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(30, outputs))

    def forward(self, x):
        return self.layers(x)


class Choosing(TwoLayers):
    """Defaults that neither JSON nor pickle knows."""

    def __init__(self, features, outputs, hidden=8, activation=nn.ReLU, shift=lambda x: x + 1, names=("a", "b")):
        super().__init__(features, outputs, hidden)
        self.activation, self.shift = activation(), shift

    def forward(self, x):
        return self.last(self.shift(self.activation(self.first(x))))


class InPlace(TwoLayers):
    """An activation between a product and its normalisation that changes the product's own output; a call by name."""

    def __init__(self, features, outputs, hidden=8):
        super().__init__(features, outputs, hidden)
        self.inner, self.norm = nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden)

    def forward(self, x):
        x = self.norm(torch.relu_(self.inner(torch.tanh(self.first(x)))))
        return self.last(input=x)


class Grown(nn.Module):
    """Layers of a kind, a width and a normalisation. ``gated`` has gates, and ``residual`` adds its inputs."""

    def __init__(self, features, outputs, kinds=("plain",), widths=(8,), norms=("batch",)):
        super().__init__()
        self.kinds = kinds
        self.into, self.norms, self.back = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for kind, width, norm in zip(kinds, widths, norms, strict=True):
            made = 2 * width if kind == "gated" else width
            self.into.append(nn.Linear(features, made))
            self.norms.append({"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, "none": nn.Identity}[norm](made))
            self.back.append(nn.Linear(width, features, bias=False) if kind == "residual" else nn.Identity())
            features = features if kind == "residual" else width
        self.last = nn.Linear(features, outputs)

    def forward(self, x):
        for kind, into, norm, back in zip(self.kinds, self.into, self.norms, self.back):
            units = norm(into(x))
            if kind == "gated":
                gates, units = units.chunk(2, -1)
                x = torch.sigmoid(gates) * units
            else:
                x = x + back(torch.relu(units)) if kind == "residual" else torch.relu(units)
        return self.last(x)


class Words(nn.Module):
    """Tables of which rows are looked up, one by one and in bags; ``by_hand``: one of them is read a second time."""

    def __init__(self, features, outputs, words=13, wide=10, by_hand=True):
        super().__init__()
        self.words, self.by_hand = words, by_hand
        self.table = nn.Embedding(words, wide, padding_idx=3)
        self.other = nn.Embedding(words, wide)
        self.bags = nn.EmbeddingBag(words, wide, mode="mean", padding_idx=1)
        self.norm = nn.BatchNorm1d(wide)
        self.inner = nn.Linear(wide, wide)
        self.last = nn.Linear(wide, outputs)

    def forward(self, x):
        words = (5 * x.abs()).long() % self.words
        x = self.norm((self.table(words) * self.other(words // 2)).sum(1)) + self.bags(words)
        if self.by_hand:
            x = x + torch.tanh(functional.linear(x, self.other.weight)) @ self.other.weight
        return self.last(torch.relu(self.inner(x)))


class Branching(TwoLayers):
    """Other layers, and other numbers of them, for other examples."""

    def __init__(self, features, outputs, hidden=9):
        super().__init__(features, outputs, hidden)
        self.odd, self.even = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.norm = nn.BatchNorm1d(hidden)

    def forward(self, x):
        x = self.first(x)
        if x.sum() > 0:
            x = torch.relu(self.odd(x))
        while x.abs().max() > 0.5:
            x = torch.tanh(self.even(x)) / 2
        return self.last(self.norm(x))


class Listed(TwoLayers):
    """It keeps its weights in a list of its own, beside the layers."""

    def __init__(self, features, outputs, hidden=8):
        super().__init__(features, outputs, hidden)
        self.weights = [nn.Parameter(torch.randn(hidden, features))]
        self.first.weight = self.weights[0]

    def forward(self, x):
        return self.last(torch.relu(functional.linear(x, self.weights[0]) + self.first(x)))


class Noisy(TwoLayers):
    """It draws random numbers in use as well."""

    def forward(self, x):
        return self.last(functional.dropout(self.first(x), 0.5, training=True))
