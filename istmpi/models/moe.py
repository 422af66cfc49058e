"""A decoder for text whose feed-forward units are experts. Each token uses its best experts (arXiv
2101.03961)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from istmpi.models.transformer import Transformer, of_layer

ALIGNED = 16
"""The bytes of a row for `torch.nn.functional.grouped_mm` must be a multiple of this number."""
_weight = 1.0
"""The weight of losses inside networks in a backward pass, as `weighing_inner_losses` sets it."""


class MoE(Transformer):
    """A transformer with a mixture of experts as the feed-forward units of each layer.

    ``shape``: tokens of a window. ``outputs``: the vocabulary. ``layers``: number of layers.
    ``embed``: width of the residual stream. ``experts``: experts of each layer; the last number
    also counts for all further layers, which share its deal. ``top``: experts for each token, or
    all if a rank holds fewer. ``hidden``: SwiGLU units of an expert. ``balance``: weight of the
    loss that spreads tokens evenly over experts. ``z``: weight of the loss that keeps the router's
    scores small. ``heads``: heads of keys and values of each layer; the last number also counts for
    all further layers. ``queries``: queries of each head. ``head_dim``: length of a query.
    ``norm``: normalisation: rms or layer. ``positions``: encoding of positions: rotary or learnt.
    ``tied``: compute the logits with the embedding's weight. ``dropout``: fraction of each layer's
    addition to the stream that a step drops.
    """

    DEALT: tuple[str, ...] = ("experts",)

    def __init__(
        self,
        shape: tuple[int],
        outputs: int,
        layers: int = 4,
        embed: int = 256,
        experts: tuple[int, ...] = (8, 8, 8, 8),
        top: int = 2,
        hidden: int = 704,
        balance: float = 0.01,
        z: float = 0.001,
        heads: tuple[int, ...] = (8, 8, 8, 8),
        queries: int = 1,
        head_dim: int = 32,
        norm: str = "rms",
        positions: str = "rotary",
        tied: bool = True,
        dropout: float = 0.0,
    ):
        _require_experts(experts, top)
        super().__init__(
            shape,
            outputs,
            layers=layers,
            embed=embed,
            heads=heads,
            queries=queries,
            head_dim=head_dim,
            hidden=(1,),
            norm=norm,
            positions=positions,
            tied=tied,
            dropout=dropout,
        )
        for number, layer in enumerate(self.layers):
            layer.feed_forward = Experts(
                embed, of_layer(experts, number), hidden=hidden, top=top, balance=balance, z=z
            )


def _require_experts(experts: tuple[int, ...], top: int) -> None:
    if not experts or top < 1:
        raise ValueError(
            f"experts = {list(experts)} needs at least one number, and top = {top} must be at "
            "least 1"
        )


class Experts(nn.Module):
    """A mean over each token's best ``top`` experts on this rank, weighted by a softmax of their
    scores."""

    def __init__(self, embed: int, experts: int, hidden: int, top: int, balance: float, z: float):
        super().__init__()
        self.top = min(top, experts)
        self.balance = balance
        self.z = z
        self.router = nn.Linear(embed, experts, bias=False)
        self.gate = nn.Parameter(torch.empty(experts, embed, hidden))
        self.up = nn.Parameter(torch.empty(experts, embed, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, embed))
        for weight in (self.gate, self.up, self.down):
            bound = weight.shape[1] ** -0.5
            # As nn.Linear draws the weight of one expert.
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores = self.router(tokens)
        best, chosen = scores.topk(self.top)
        if self._can_group(x):
            mixed = self._mix_by_groups(tokens, best, chosen)
        else:
            mixed = self._mix_all(tokens, scores, best, chosen)
        mixed = mixed.view_as(x)
        if self.training and (self.balance or self.z):
            mixed = with_loss(mixed, self._loss(scores, chosen))
        return mixed

    def _can_group(self, x):
        # Older versions of torch lack it, and it takes no other types.
        if not hasattr(functional, "grouped_mm") or x.dtype not in (torch.float32, torch.bfloat16):
            return False
        size = 2 if torch.is_autocast_enabled(x.device.type) else x.element_size()
        # The product refuses rows that are not aligned, and cannot be exported.
        aligned = all(side * size % ALIGNED == 0 for side in self.up.shape[1:])
        return aligned and not torch.compiler.is_exporting()

    def _mix_by_groups(self, tokens, best, chosen):
        """Return the mean over each token's experts, from the products of these experts alone."""
        number, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(
            number, torch.arange(len(self.up), device=number.device), right=True, out_int32=True
        )
        # In ``chosen``, flattened, each token has ``top`` places.
        x = tokens[order // self.top]
        gate = functional.grouped_mm(x, self.gate, offs=ends)
        up = functional.grouped_mm(x, self.up, offs=ends)
        outputs = functional.grouped_mm(functional.silu(gate) * up, self.down, offs=ends)
        # Back from the order of experts to that of tokens.
        outputs = outputs[order.argsort()].view(*chosen.shape, -1)
        return (outputs * best.softmax(-1)[..., None]).sum(1)

    def _mix_all(self, tokens, scores, best, chosen):
        """Return the mean over each token's experts, from the products of all experts."""
        weights = torch.full_like(scores, -torch.inf).scatter(-1, chosen, best).softmax(-1)
        gate = torch.einsum("td,edh->teh", tokens, self.gate)
        up = torch.einsum("td,edh->teh", tokens, self.up)
        weighted = functional.silu(gate) * up * weights[..., None]
        return torch.einsum("teh,ehd->td", weighted, self.down)

    def _loss(self, scores, chosen):
        """Return the scalar loss of ``scores`` ``[tokens, experts]`` and ``chosen`` ``[tokens,
        top]``."""
        experts = scores.shape[-1]
        shares = scores.softmax(-1).mean(0)
        # The choice has no gradient; the shares, which it multiplies, have.
        taken = torch.zeros_like(scores).scatter(-1, chosen, 1.0).mean(0) / self.top
        balance = self.balance * experts * (taken * shares).sum()
        return balance + self.z * scores.logsumexp(-1).square().mean()


def with_loss(x: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    """Return ``x`` unchanged. A backward pass through it also adds the gradient of the scalar
    ``loss``."""
    return _WithLoss.apply(x, loss)


class _WithLoss(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        context.loss = loss.shape, loss.dtype
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape, dtype = context.loss
        return gradient, gradient.new_full(shape, _weight, dtype=dtype)


@contextmanager
def weighing_inner_losses(weight: float) -> Iterator[None]:
    """Open a context for the backward pass of a loss that was multiplied by ``weight``: losses
    inside the network count as much."""
    global _weight
    _weight = weight
    try:
        yield
    finally:
        _weight = 1.0
