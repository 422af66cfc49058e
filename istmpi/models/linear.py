"""A linear layer whose gradient stays in place, and can be sent in parts while the rest is still being computed."""

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

BLOCK_BYTES = 8 * 2**20
SMALL = 2**17
"""Bytes of a weight up to which torch's own backward pass is faster."""


class Linear(nn.Linear):
    """torch's layer, except that the gradient of its weight is written into the same memory in every step.

    Fresh memory costs page faults: a fifth of the time of a large gradient. ``made``, if it is set, is called in the
    backward pass with the number of elements of ``weight.grad`` that are final.
    """

    made: Callable[[int], None] | None = None
    _memory: torch.Tensor | None = None
    _awaited = 0
    """Forward passes whose backward pass is still to come."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        ours = weight.requires_grad and (self.made or weight.nbytes > SMALL) and weight.device.type == "cpu"
        if not ours or not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return super().forward(x)
        self.expect_gradient()
        return _Product.apply(x, self.weight, self.bias, self)

    def release(self) -> None:
        self._memory = None

    def expect_gradient(self) -> None:
        self._awaited += 1

    def begin_gradient(self) -> Callable[[slice, torch.Tensor, torch.Tensor], None]:
        """A function that adds to rows of ``weight.grad``, or begins them, from gradients of products ``[batch, rows]``
        and inputs; to be called for all rows, in their order.
        """
        self._awaited -= 1
        weight = self.weight
        begin = weight.grad is None
        if begin:
            if self._memory is None:
                self._memory = torch.empty_like(weight)
            weight.grad = self._memory
        final = self.made if not self._awaited else None

        def add(rows: slice, of_products: torch.Tensor, x: torch.Tensor) -> None:
            block = weight.grad[rows]
            torch.addmm(block, of_products.T, x, beta=not begin, out=block)
            if final:
                final(rows.start * weight.shape[1] + block.numel())

        return add

    def add_gradient(self, x: torch.Tensor, of_products: torch.Tensor) -> None:
        """Add to ``weight.grad``, or begin it."""
        weight = self.weight
        awaited = self.made is not None and self._awaited == 1
        rows = max(BLOCK_BYTES // (weight.element_size() * weight.shape[1]), 1) if awaited else len(weight)
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
    """``functional.linear``; the weight's gradient goes to the layer."""

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
        of_inputs = gradient @ weight if ctx.needs_input_grad[0] else None
        return of_inputs, None, flat.sum(dim=0) if ctx.needs_input_grad[2] else None, None
