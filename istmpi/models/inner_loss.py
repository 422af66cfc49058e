"""A loss inside a network: a layer adds it to the one that training reduces."""

from typing import Any

import torch


def with_loss(x: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    """Return ``x`` as it is; a backward pass through it reduces the scalar ``loss``, too, as if it were added."""
    return _WithLoss.apply(x, loss)


class _WithLoss(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        context.loss = loss.shape, loss.dtype
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape, dtype = context.loss
        return gradient, gradient.new_ones(shape, dtype=dtype)
