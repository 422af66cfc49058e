"""A decoder for text (Vaswani et al. 2017, arXiv 1706.03762), with normalisations at layers' inputs
as in GPT-2."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

NORMS = {"rms": nn.RMSNorm, "layer": nn.LayerNorm}
EPSILON = 1e-5


class Transformer(nn.Module):
    """An embedding of tokens, layers that add to a residual stream, and a layer that makes logits
    of the next token.

    ``shape``: tokens of a window. ``outputs``: the vocabulary. ``layers``: number of layers.
    ``embed``: width of the residual stream. ``heads``: heads of keys and values of each layer; the
    last number also counts for all further layers, which share its deal. ``queries``: queries of
    each head. ``head_dim``: length of a query. ``hidden``: feed-forward units of each layer; the
    last number also counts for all further layers. ``norm``: normalisation: rms or layer.
    ``positions``: encoding of positions: rotary or learnt. ``feed_forward``: feed-forward units:
    swiglu or gelu. ``tied``: compute the logits with the embedding's weight. ``dropout``: fraction
    of each layer's addition to the stream that a step drops.
    """

    DEALT: tuple[str, ...] = ("heads", "hidden")

    def __init__(
        self,
        shape: tuple[int],
        outputs: int,
        layers: int = 4,
        embed: int = 256,
        heads: tuple[int, ...] = (8, 8, 8, 8),
        queries: int = 1,
        head_dim: int = 32,
        hidden: tuple[int, ...] = (704, 704, 704, 704),
        norm: str = "rms",
        positions: str = "rotary",
        feed_forward: str = "swiglu",
        tied: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        _require_choice("norm", norm, tuple(NORMS))
        _require_choice("positions", positions, ("rotary", "learnt"))
        _require_choice("feed_forward", feed_forward, ("swiglu", "gelu"))
        if len(shape) != 1:
            raise ValueError(f"examples of shape {tuple(shape)} are not windows of tokens")
        _require_sizes(heads, hidden, head_dim, positions)
        self.embedding = nn.Embedding(outputs, embed)
        self.positions: nn.Embedding | None = None
        if positions == "learnt":
            self.positions = nn.Embedding(shape[0], embed)
        rotary = positions == "rotary"
        gated = feed_forward == "swiglu"
        self.layers = nn.ModuleList()
        for number in range(layers):
            attention = Attention(embed, of_layer(heads, number), queries, head_dim, rotary)
            units = FeedForward(embed, of_layer(hidden, number), gated)
            self.layers.append(Layer(embed, attention, units, norm, dropout))
        self.norm = NORMS[norm](embed, eps=EPSILON)
        self.outputs = nn.Linear(embed, outputs, bias=False)
        if tied:
            self.outputs.weight = self.embedding.weight

    def forward(self, tokens, cache: list | None = None):
        """Return logits ``[b, t, outputs]`` of the token after each of ``tokens`` ``[b, t]`` int64.

        ``cache``: a list, empty at first, to which a call adds keys and values. The next call's
        tokens follow.
        """
        # The cache has keys and values, ``[b, heads, tokens so far, head_dim]`` each.
        first = cache[0][0].shape[2] if cache else 0
        places = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(places)
        for number, layer in enumerate(self.layers):
            # The first call makes an entry for each layer.
            if cache is not None and len(cache) == number:
                cache.append(None)
            x = layer(x, places, cache, number)
        return self.outputs(self.norm(x))


def of_layer(numbers: tuple[int, ...], layer: int) -> int:
    """Return a layer's number; the last one also counts for all further layers."""
    return numbers[min(layer, len(numbers) - 1)]


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} = {value!r} must be {' or '.join(choices)}")


def _require_sizes(
    heads: tuple[int, ...], hidden: tuple[int, ...], head_dim: int, positions: str
) -> None:
    if not heads or not hidden:
        raise ValueError(
            f"heads = {list(heads)} and hidden = {list(hidden)} each need at least one number"
        )
    if positions == "rotary" and head_dim % 2:
        raise ValueError(f"head_dim = {head_dim} must be even with rotary positions")


class Layer(nn.Module):
    """Attention, then feed-forward units, each added to the stream."""

    def __init__(
        self, embed: int, attention: Attention, feed_forward: FeedForward, norm: str, dropout: float
    ):
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.attention_norm = NORMS[norm](embed, eps=EPSILON)
        self.feed_forward_norm = NORMS[norm](embed, eps=EPSILON)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, places, cache, number):
        x = x + self.dropout(self.attention(self.attention_norm(x), places, cache, number))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class Attention(nn.Module):
    """Causal attention with several queries for each head of keys and values."""

    def __init__(self, embed: int, heads: int, queries: int, head_dim: int, rotary: bool):
        super().__init__()
        self.heads = heads
        self.queries = queries
        self.rotary = rotary
        self.query = nn.Linear(embed, heads * queries * head_dim, bias=False)
        self.key = nn.Linear(embed, heads * head_dim, bias=False)
        self.value = nn.Linear(embed, heads * head_dim, bias=False)
        self.output = nn.Linear(heads * queries * head_dim, embed, bias=False)

    def forward(self, x, places, cache, number):
        b, t, _ = x.shape
        query = self.query(x).view(b, t, self.heads * self.queries, -1).transpose(1, 2)
        key = self.key(x).view(b, t, self.heads, -1).transpose(1, 2)
        value = self.value(x).view(b, t, self.heads, -1).transpose(1, 2)
        if self.rotary:
            query = _rotate(query, places)
            key = _rotate(key, places)
        resumes = cache is not None and cache[number] is not None
        if resumes:
            key_before, value_before = cache[number]
            key = torch.cat([key_before, key], dim=2)
            value = torch.cat([value_before, value], dim=2)
        if cache is not None:
            cache[number] = (key, value)
        if self.queries > 1:
            # All queries of a head share its keys and values.
            key = key.repeat_interleave(self.queries, dim=1)
            value = value.repeat_interleave(self.queries, dim=1)
        mask = None
        if resumes:
            # Each of the new tokens sees all before it. PyTorch's own causal mask would take the
            # first new token for the first of all.
            mask = torch.arange(key.shape[2], device=x.device) <= places[:, None]
        mixed = functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=not resumes
        )
        return self.output(mixed.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    """Units with GELU, or with SwiGLU (Shazeer 2020, arXiv 2002.05202), which has a second product
    as its gate."""

    def __init__(self, embed: int, hidden: int, gated: bool):
        super().__init__()
        self.up = nn.Linear(embed, hidden, bias=False)
        self.gate: nn.Linear | None = None
        if gated:
            self.gate = nn.Linear(embed, hidden, bias=False)
        self.down = nn.Linear(hidden, embed, bias=False)

    def forward(self, x):
        if self.gate is None:
            return self.down(functional.gelu(self.up(x)))
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def _rotate(x, places):
    """Rotate pairs of numbers of ``x`` ``[b, heads, t, head_dim]`` by angles in proportion to
    ``places`` ``[t]`` (Su et al. 2021, arXiv 2104.09864)."""
    half = x.shape[-1] // 2
    # In float64, because angles of late positions lose digits in float32.
    rates = 10_000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angles = (places.double()[:, None] * rates).to(x.dtype)
    first = x[..., :half]
    second = x[..., half:]
    cos = angles.cos()
    sin = angles.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
