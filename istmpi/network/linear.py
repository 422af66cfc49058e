"""Linear layers that reuse the memory of a gradient. Parts of a gradient can be sent before the
rest is computed.

In training, `LabelBlocks` has the logits of only one block of labels in memory. The backward pass
computes the logits again (a fourth product), unless there is only one block. Plain SGD updates a
block's weights as soon as their gradient is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from istmpi.multilabel import Labels, combine_totals, compute_totals, weigh_labels

BLOCK_BYTES = 8 * 2**20
SMALL = 2**17
"""Bytes of a weight up to which torch's own backward pass is faster."""


class Linear(nn.Linear):
    """PyTorch's layer, but a large weight's gradient reuses its memory, on a CPU without autocast.

    Fresh memory costs page faults: a fifth of the time of a large gradient. If ``made`` is set,
    every weight counts as large, and the backward pass calls ``made`` with the number of leading
    elements of ``weight.grad`` that are final.
    """

    writes_gradient = True
    """False if torch's own backward pass computes the gradient, as hooks of other code expect."""
    made: Callable[[int], None] | None = None
    _memory: torch.Tensor | None = None
    _awaited = 0
    """The number of forward passes without their backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self._reuses_memory():
            return super().forward(x)
        self.expect_gradient()
        return _Product.apply(x, self.weight, self.bias, self)

    def _reuses_memory(self) -> bool:
        weight = self.weight
        if not self.writes_gradient or not torch.is_grad_enabled():
            return False
        if torch.is_autocast_enabled("cpu"):
            return False
        if not weight.requires_grad or weight.device.type != "cpu":
            return False
        return self.made is not None or weight.nbytes > SMALL

    def release(self) -> None:
        self._memory = None

    def expect_gradient(self) -> None:
        self._awaited += 1

    def begin_gradient(self) -> Callable[[slice, torch.Tensor, torch.Tensor], None]:
        """Return a function that writes rows of ``weight.grad``, or adds to them. Call it for all
        rows in order.

        Its arguments are the slice of rows, the gradient of products ``[batch, rows]``, and inputs
        ``[batch, inputs]``.
        """
        self._awaited -= 1
        weight = self.weight
        gradient = weight.grad
        begin = gradient is None
        # zero_grad(set_to_none=True) drops the gradient, but not its memory.
        if gradient is None:
            if self._memory is None:
                self._memory = torch.empty_like(weight)
            gradient = self._memory
            weight.grad = gradient
        final = None
        # The gradient of a weight with several uses is final after the last one.
        if not self._awaited:
            final = self.made

        def add(rows: slice, of_products: torch.Tensor, x: torch.Tensor) -> None:
            block = gradient[rows]
            torch.addmm(block, of_products.T, x, beta=not begin, out=block)
            if final:
                final(rows.start * weight.shape[1] + block.numel())

        return add

    def add_gradient(self, x: torch.Tensor, of_products: torch.Tensor) -> None:
        weight = self.weight
        rows = len(weight)
        # Blocks let parts of the gradient leave while the rest is computed.
        if self.made is not None and self._awaited == 1:
            rows = max(BLOCK_BYTES // (weight.element_size() * weight.shape[1]), 1)
        add = self.begin_gradient()
        for start in range(0, len(weight), rows):
            stop = min(start + rows, len(weight))
            add(slice(start, stop), of_products[:, start:stop], x)


def linear_layers(network: nn.Module) -> Iterator[tuple[str, Linear]]:
    return ((name, layer) for name, layer in network.named_modules() if isinstance(layer, Linear))


def release_gradients(network: nn.Module) -> None:
    network.zero_grad(set_to_none=True)
    for _, layer in linear_layers(network):
        layer.release()


class _Product(Function):
    """A product whose backward pass adds the weight's gradient in blocks, which the layer writes
    itself."""

    @staticmethod
    def forward(ctx, x, weight, bias, layer):
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        flat = gradient.reshape(-1, gradient.shape[-1])
        ctx.layer.add_gradient(x.reshape(-1, x.shape[-1]), flat)
        needs_inputs, _, needs_bias, _ = ctx.needs_input_grad
        inputs_gradient = gradient @ weight if needs_inputs else None
        bias_gradient = flat.sum(dim=0) if needs_bias else None
        return inputs_gradient, None, bias_gradient, None


class LabelBlocks(Linear):
    """A linear layer over labels. With ``deferred`` it returns `Deferred`, not logits, in training
    without autocast."""

    deferred = False
    rate: float | None = None
    """The learning rate, if plain SGD takes its step in the backward pass; otherwise None."""
    decay = 0.0

    def __init__(self, inputs: int, labels: int, block: int = 0):
        """``block``: the number of labels whose logits are in memory at a time; 0 means all."""
        super().__init__(inputs, labels)
        self.block = block

    # Only the losses of this module read a `Deferred`.
    def forward(self, x: torch.Tensor) -> torch.Tensor | Deferred:  # type: ignore[override]
        if not self.deferred or not torch.is_grad_enabled():
            return super().forward(x)
        if torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        return Deferred(self, x)

    def blocks(self) -> Iterator[slice]:
        labels = len(self.weight)
        step = self.block or labels
        return (slice(start, min(start + step, labels)) for start in range(0, labels, step))

    def take_step(self, rows: slice, of_products: torch.Tensor, x: torch.Tensor) -> None:
        """Take the step of plain SGD for the rows of a block."""
        # Without the gradient of all labels, which may be larger than memory.
        block = self.weight.data[rows]
        rate = self.rate or 0.0
        torch.addmm(block, of_products.T, x, beta=1 - rate * self.decay, alpha=-rate, out=block)

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
    """The losses of examples, computed block by block. The layer adds up its weight's gradient, or
    takes a step."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, weight: Any, bias: Any, layer: LabelBlocks, targets: Labels, loss: str
    ) -> Any:
        weights, shares = (values.to(x.dtype) for values in weigh_labels(targets, loss))
        blocks = list(layer.blocks())
        totals = []
        positive = x.new_zeros(len(x))
        for block in blocks:
            logits = layer.logits(x, block)
            totals.append(compute_totals(logits, loss))
            inside = _inside(targets, block)
            rows = targets.rows[inside]
            columns = targets.columns[inside] - block.start
            positive.index_add_(0, rows, weights[inside] * logits[rows, columns])
        total = combine_totals(torch.stack(totals), loss)
        ctx.save_for_backward(x, total, weights, shares)
        ctx.layer = layer
        ctx.targets = targets
        ctx.loss = loss
        # The logits of several blocks would need the memory that blocks save.
        ctx.logits = logits if len(blocks) == 1 else None
        layer.expect_gradient()
        return shares * total - positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, total, weights, shares = ctx.saved_tensors
        layer = ctx.layer
        targets = ctx.targets
        bias_gradient = torch.empty_like(layer.bias)
        x_gradient = torch.zeros_like(x)
        scale = (shares * gradient)[:, None]
        label_gradients = -weights * gradient[targets.rows]
        use_gradient = layer.take_step
        if layer.rate is None:
            use_gradient = layer.begin_gradient()
        for block in layer.blocks():
            logits = ctx.logits
            if logits is None:
                logits = layer.logits(x, block)
            if ctx.loss == "softmax":
                odds = logits.sub_(total[:, None]).exp_()
            else:
                odds = logits.sigmoid_()
            inside = _inside(targets, block)
            place = (targets.rows[inside], targets.columns[inside] - block.start)
            products = odds.mul_(scale)
            products.index_put_(place, label_gradients[inside], accumulate=True)
            torch.sum(products, dim=0, out=bias_gradient[block])
            # Before the step, which changes the weights of this block.
            x_gradient.addmm_(products, layer.weight.data[block])
            use_gradient(block, products, x)
        ctx.logits = None
        return x_gradient, None, bias_gradient, None, None, None


def _inside(targets: Labels, block: slice) -> torch.Tensor:
    return (targets.columns >= block.start) & (targets.columns < block.stop)
