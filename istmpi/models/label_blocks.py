"""A last layer of very many labels, which has the logits of one block of labels at a time in training.

The backward pass goes through the blocks again and computes the logits anew (a fourth product beside three); those of a
single block are kept. Plain SGD updates a block's weights as soon as their gradient is computed.
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
    """A linear layer; once ``deferred`` is set, it returns `Deferred` losses in training."""

    deferred = False
    rate: float | None = None
    """The learning rate of plain SGD that steps in the backward pass; else None."""
    decay = 0.0

    def __init__(self, inputs: int, labels: int, block: int = 0):
        """``block``: the number of labels whose logits are in memory at a time; 0 for all."""
        super().__init__(inputs, labels)
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor | Deferred:
        if self.deferred and torch.is_grad_enabled() and not torch.is_autocast_enabled(x.device.type):
            return Deferred(self, x)
        return super().forward(x)

    def blocks(self) -> Iterator[slice]:
        labels = len(self.weight)
        step = self.block or labels
        return (slice(start, min(start + step, labels)) for start in range(0, labels, step))

    def take_step(self, rows: slice, of_products: torch.Tensor, x: torch.Tensor) -> None:
        block = self.weight.data[rows]
        torch.addmm(block, of_products.T, x, beta=1 - self.rate * self.decay, alpha=-self.rate, out=block)

    def logits(self, x: torch.Tensor, rows: slice) -> torch.Tensor:
        return torch.addmm(self.bias[rows], x, self.weight[rows].T)


@dataclass(frozen=True)
class Deferred:
    layer: LabelBlocks
    x: torch.Tensor

    def losses(self, targets: Labels, loss: str) -> torch.Tensor:
        layer = self.layer
        return _Losses.apply(self.x, layer.weight, layer.bias, layer, targets, loss)


def defer(network: nn.Module) -> None:
    for layer in label_layers(network):
        layer.deferred = True


def label_layers(network: nn.Module) -> Iterator[LabelBlocks]:
    return (layer for layer in network.modules() if isinstance(layer, LabelBlocks))


class _Losses(Function):
    """The losses of examples, block by block; the weight's gradient goes to the layer, where its memory is."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, layer: LabelBlocks, targets: Labels, loss: str) -> Any:
        weights, shares = (values.to(x.dtype) for values in weights_of(targets, loss))
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
