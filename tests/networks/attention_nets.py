"""Networks with attention, as users write them: they know nothing of istmpi."""

import torch
from torch import nn
from torch.nn import functional

DIM = 2
"""Numbers of a head."""


class MhaCross(nn.Module):
    """torch's own attention, with keys and values of widths of their own."""

    def __init__(self, shape, outputs, heads=12, keys=8):
        super().__init__()
        self.query, self.key = nn.Linear(shape[-1], heads * DIM), nn.Linear(shape[-1], keys)
        self.attention = nn.MultiheadAttention(heads * DIM, heads, kdim=keys, vdim=shape[-1], batch_first=True)
        self.last = nn.Linear(heads * DIM, outputs)

    def forward(self, x):
        queries = self.query(x.mean(1, keepdim=True))
        return self.last(self.attention(queries, torch.tanh(self.key(x)), x, need_weights=False)[0][:, 0])


class EncoderLayer(nn.Module):
    """torch's own layer of an encoder."""

    def __init__(self, shape, outputs, heads=6, hidden=12):
        super().__init__()
        self.into = nn.Linear(shape[-1], heads * DIM)
        self.layer = nn.TransformerEncoderLayer(heads * DIM, heads, hidden, 0.0, batch_first=True)
        self.last = nn.Linear(heads * DIM, outputs)

    def forward(self, x):
        return self.last(self.layer(self.into(x)).mean(1))


class Windows(nn.Module):
    """Attention before and behind pairs of places become one: axes of five kinds, with thousands of readings."""

    def __init__(self, shape, outputs, heads=6):
        super().__init__()
        self.heads, width = heads, 12 * heads
        self.qkv = nn.ModuleList((nn.Linear(width, 3 * width), nn.Linear(2 * width, 6 * width)))
        self.into, self.up = nn.Linear(shape[-1], width), nn.Linear(width, 4 * width)
        self.down, self.last = nn.Linear(4 * width, width), nn.Linear(2 * width, outputs)

    def attended(self, x, number):
        q, k, v = self.qkv[number](x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    def forward(self, x):
        x = self.down(torch.relu(self.up(self.attended(self.into(x), 0).flatten(2)))).unflatten(-1, (self.heads, -1))
        x = torch.cat([x[:, 0:4:2], x[:, 1:4:2]], -1)
        return self.last(self.attended(x.flatten(2), 1).flatten(2).mean(1))


class Latents(nn.Module):
    """Learnt queries, so many as an argument says, whose answers are averaged."""

    def __init__(self, shape, outputs, latents=12):
        super().__init__()
        self.latents, self.key = nn.Parameter(torch.randn(latents, 4)), nn.Linear(shape[-1], 4)
        self.value, self.last = nn.Linear(shape[-1], 5), nn.Linear(5, outputs)

    def forward(self, x):
        attended = torch.softmax(self.latents @ self.key(x).transpose(1, 2), -1) @ self.value(x)
        return self.last(torch.tanh(attended).mean(1))
