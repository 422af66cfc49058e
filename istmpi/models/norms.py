"""Batch normalisation without running statistics, whose moments can be set once the full network is calibrated."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional

from istmpi.models.operators import EPSILON


class BatchNorm(nn.Module):
    """Every unit normalised over the batch, or by ``moments`` where they are set: ``[batch, units, ...]``.

    A unit of a subnet sees fewer inputs than it will in the full network, so running statistics gathered in training
    would be wrong there. `istmpi.evaluation` takes the full network's moments on a sample of the training data.
    """

    moments: tuple[torch.Tensor, torch.Tensor] | None = None
    """Mean and variance of every unit, ``[units]`` each."""

    def __init__(self, units: int, affine: bool, dtype: torch.dtype | None = None):
        super().__init__()
        self.num_features, self.eps = units, EPSILON
        self.weight = nn.Parameter(torch.ones(units, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.zeros(units, dtype=dtype)) if affine else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, variance = self.moments or (None, None)
        return functional.batch_norm(
            x, mean, variance, self.weight, self.bias, training=self.moments is None, eps=self.eps
        )


def convert_batch_norms(network: nn.Module) -> None:
    """Let PyTorch's own batch normalisations become ours, with the weights and the epsilon that they have."""
    for module in network.modules():
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            module._buffers.clear()
            module.__class__ = BatchNorm


@torch.no_grad()
def calibrate(
    network: nn.Module,
    layers: Mapping[str, BatchNorm],
    inputs: tuple[torch.Tensor, ...],
    moments_of: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """Run a network on a batch once; each batch normalisation takes the moments of what arrives there, in turn."""
    hooks = []
    for layer in layers.values():

        def take(layer: BatchNorm, inputs: tuple[torch.Tensor, ...]) -> None:
            layer.moments = moments_of(inputs[0])

        hooks.append(layer.register_forward_pre_hook(take))
    try:
        network(*inputs)
    finally:
        for hook in hooks:
            hook.remove()


def moments_of(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance ``[units]`` of every unit of ``[batch, units, ...]``."""
    variance, mean = torch.var_mean(x, dim=[0, *range(2, x.ndim)], correction=0)
    return mean, variance
