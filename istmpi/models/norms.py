"""Batch normalisation without running statistics, whose moments can be set once the full network is calibrated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from istmpi.models.operators import EPSILON
from istmpi.models.trials import hooked


class BatchNorm(nn.Module):
    """A normalisation of every unit over the batch, or by ``moments`` once they are set: ``[batch, units, ...]``.

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
    """Turn PyTorch's own batch normalisations into ours, with their weights and epsilon."""
    for module in network.modules():
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            module._buffers.clear()
            module.__class__ = BatchNorm


@torch.no_grad()
def calibrate(
    network: nn.Module,
    layers: Mapping[str, BatchNorm],
    inputs: tuple[torch.Tensor, ...],
    moments_of: Callable[[torch.Tensor, str], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """Run a network on a batch's inputs once; each batch normalisation takes the moments of its input, in turn.

    ``moments_of`` gets that input and the layer's name.
    """

    def take(name: str, layer: BatchNorm, inputs: tuple[torch.Tensor, ...]) -> None:
        layer.moments = moments_of(inputs[0], name)

    with hooked(layer.register_forward_pre_hook(partial(take, name)) for name, layer in layers.items()):
        network(*inputs)


def moments_of(x: torch.Tensor, layer: str = "") -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance ``[units]`` of every unit of ``[batch, units, ...]``, alike for any ``layer``."""
    variance, mean = torch.var_mean(x, dim=[0, *range(2, x.ndim)], correction=0)
    return mean, variance
