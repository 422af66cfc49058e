"""Batch normalisation without running statistics, whose moments can be set once the full network is calibrated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from istmpi.models.operators import EPSILON
from istmpi.models.trials import hooked
from istmpi.trees import call


class Calibrated:
    """A normalisation of every unit over the batch, or by ``moments`` once they are set: ``[batch, units, ...]``.

    A unit of a subnet sees fewer inputs than it will in the full network, so running statistics gathered in training
    would be wrong there. `istmpi.evaluation` takes the full network's moments on a sample of the training data.
    """

    moments: tuple[torch.Tensor, torch.Tensor] | None = None
    """Mean and variance of every unit, ``[units]`` each."""


class BatchNorm(Calibrated, nn.Module):
    """The normalisation of PyTorch's own layers, without anything else."""

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


class _OfAnotherClass(Calibrated):
    """The normalisation of a class derived from PyTorch's, whose forward reads running statistics: the moments."""

    @property
    def moments(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        return None if self.running_mean is None else (self.running_mean, self.running_var)

    @moments.setter
    def moments(self, moments: tuple[torch.Tensor, torch.Tensor] | None) -> None:
        self.running_mean, self.running_var = moments or (None, None)


@cache
def _calibrated(kind: type[nn.Module]) -> type[nn.Module]:
    return type(kind.__name__, (_OfAnotherClass, kind), {})


def convert_batch_norms(network: nn.Module) -> None:
    """Turn batch normalisations, PyTorch's own and those of derived classes, into such without running statistics."""
    kinds = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
    for module in network.modules():
        if type(module) in kinds:
            module._buffers.clear()
            module.__class__ = BatchNorm
        elif isinstance(module, kinds):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.__class__ = _calibrated(type(module))


def calibrate(
    network: nn.Module,
    layers: Mapping[str, Calibrated],
    inputs: tuple[Any, ...],
    moments_of: Callable[[torch.Tensor, str], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """Run a network on a batch's inputs once, `calibrating` its layers."""
    with torch.no_grad(), calibrating(layers, moments_of):
        call(network, inputs)


@contextmanager
def calibrating(
    layers: Mapping[str, Calibrated], moments_of: Callable[[torch.Tensor, str], tuple[torch.Tensor, torch.Tensor]]
) -> Iterator[None]:
    """Each batch normalisation takes the moments of its input, in turn, in a forward pass within.

    ``moments_of`` gets that input and the layer's name.
    """

    def take(name: str, layer: Calibrated, inputs: tuple[torch.Tensor, ...]) -> None:
        layer.moments = moments_of(inputs[0], name)

    with hooked(layer.register_forward_pre_hook(partial(take, name)) for name, layer in layers.items()):
        yield


def moments_of(x: torch.Tensor, layer: str = "") -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance ``[units]`` of every unit of ``[batch, units, ...]``, alike for any ``layer``."""
    variance, mean = torch.var_mean(x, dim=[0, *range(2, x.ndim)], correction=0)
    return mean, variance
