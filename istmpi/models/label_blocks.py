"""A last layer of very many labels, which in training has logits of a block of them at a time.

Neither the logits of a batch nor their gradient are ever in memory whole where there are several blocks: the loss goes
through the blocks, and its backward pass through them again, which computes logits anew (one product more of three).
With a single block its logits are kept, and become their own gradient. Plain SGD takes its step of a block's weights as
soon as their gradient is known, which is not kept, either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from istmpi.models.linear import Linear
from istmpi.multilabel import together, total_of, weights_of

if TYPE_CHECKING:
    from istmpi.data.batch import Labels


class LabelBlocks(Linear):
    """A linear layer; where somebody sets ``deferred``, what it returns in training is its losses (`Deferred`)."""

    deferred = False
    rate: float | None = None
    """Of plain SGD, where its step of the weight is taken in the backward pass."""
    decay = 0.0
    """The weight decay of that."""

    def __init__(self, inputs: int, labels: int, block: int = 0):
        """``block``: labels whose logits are in memory at a time; 0 for all."""
        super().__init__(inputs, labels)
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor | Deferred:
        """Logits ``[b, labels]`` of ``[b, inputs]``."""
        if self.deferred and torch.is_grad_enabled() and not torch.is_autocast_enabled(x.device.type):
            return Deferred(self, x)
        return super().forward(x)

    def blocks(self) -> Iterator[slice]:
        """The rows of each block."""
        labels = len(self.weight)
        step = self.block or labels
        return (slice(start, min(start + step, labels)) for start in range(0, labels, step))

    def take_step(self, rows: slice, of_products: torch.Tensor, x: torch.Tensor) -> None:
        """Move a block's weights against their gradient."""
        block = self.weight.data[rows]
        torch.addmm(block, of_products.T, x, beta=1 - self.rate * self.decay, alpha=-self.rate, out=block)

    def logits(self, x: torch.Tensor, rows: slice) -> torch.Tensor:
        """Of the labels of a block: ``[b, block]``."""
        return torch.addmm(self.bias[rows], x, self.weight[rows].T)


@dataclass(frozen=True)
class Deferred:
    """The outputs of `LabelBlocks` that are not there yet."""

    layer: LabelBlocks
    x: torch.Tensor

    def losses(self, targets: Labels, loss: str) -> torch.Tensor:
        """As `istmpi.multilabel.losses_of` of the logits: ``[b]``."""
        layer = self.layer
        return _Losses.apply(self.x, layer.weight, layer.bias, layer, targets, loss)


def defer(network: nn.Module) -> None:
    """Have a network's last layer of labels return losses where it is trained."""
    for layer in label_layers(network):
        layer.deferred = True


def label_layers(network: nn.Module) -> Iterator[LabelBlocks]:
    """Those of a network."""
    return (layer for layer in network.modules() if isinstance(layer, LabelBlocks))


class _Losses(Function):
    """The losses of examples, block by block; the weight's gradient goes to the layer, where its memory is."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, layer: LabelBlocks, targets: Labels, loss: str) -> Any:
        weights, shares = (of.to(x.dtype) for of in weights_of(targets, loss))
        blocks, rows, totals = list(layer.blocks()), targets.rows, []
        positive, kept = x.new_zeros(len(x)), None
        for block in blocks:
            logits = layer.logits(x, block)
            totals.append(total_of(logits, loss))
            inside = _inside(targets, block)
            at = rows[inside], targets.columns[inside] - block.start
            positive.index_add_(0, at[0], weights[inside] * logits[at])
            kept = logits if len(blocks) == 1 else None
        total = together(torch.stack(totals), loss)
        ctx.save_for_backward(x, total, weights, shares)
        ctx.layer, ctx.targets, ctx.loss, ctx.logits = layer, targets, loss, kept
        layer.expect_gradient()
        return shares * total - positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, total, weights, shares = ctx.saved_tensors
        layer, targets, rows = ctx.layer, ctx.targets, ctx.targets.rows
        of_bias, of_x = torch.empty_like(layer.bias), torch.zeros_like(x)
        scale, of_labels = (shares * gradient)[:, None], -weights * gradient[rows]
        of_weight = layer.begin_gradient() if layer.rate is None else layer.take_step
        for block in layer.blocks():
            logits = layer.logits(x, block) if ctx.logits is None else ctx.logits
            odds = logits.sub_(total[:, None]).exp_() if ctx.loss == "softmax" else logits.sigmoid_()
            inside = _inside(targets, block)
            at = rows[inside], targets.columns[inside] - block.start
            products = odds.mul_(scale).index_put_(at, of_labels[inside], accumulate=True)
            torch.sum(products, dim=0, out=of_bias[block])
            of_x.addmm_(products, layer.weight.data[block])
            of_weight(block, products, x)
        ctx.logits = None
        return of_x, None, of_bias, None, None, None


def _inside(targets: Labels, block: slice) -> torch.Tensor:
    return (targets.columns >= block.start) & (targets.columns < block.stop)
