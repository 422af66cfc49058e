"""Batch normalisation without running statistics. Moments can be set when the full network is
calibrated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from istmpi.network.table import EPSILON
from istmpi.network.trials import hooked, seeded
from istmpi.network.user import UserNetwork
from istmpi.trees import call

Moments = tuple[torch.Tensor, torch.Tensor]


class Calibrated(nn.Module):
    """A normalisation of every unit of ``[batch, units, ...]`` over the batch, or by ``moments``
    once they are set.

    It keeps no running statistics: a subnet's units see fewer inputs, so its statistics are wrong
    in the full network.
    """

    num_features: int
    """The number of units."""
    eps: float
    moments: Moments | None = None
    """Mean and variance of every unit, ``[units]`` each."""
    each = False
    """True if every example is normalised by itself while there are no moments."""


class BatchNorm(Calibrated):
    def __init__(self, units: int, affine: bool, dtype: torch.dtype | None = None):
        super().__init__()
        self.num_features = units
        self.eps = EPSILON
        self.weight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if affine:
            self.weight = nn.Parameter(torch.ones(units, dtype=dtype))
            self.bias = nn.Parameter(torch.zeros(units, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, variance = self.moments or (None, None)
        return functional.batch_norm(
            x, mean, variance, self.weight, self.bias, training=self.moments is None, eps=self.eps
        )


class _OfAnotherClass(Calibrated):
    """A normalisation of a class that is not in `BATCH_NORMS`. Its running statistics hold the
    moments."""

    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    track_running_stats: bool

    @property
    def moments(self) -> Moments | None:
        if self.running_mean is None or self.running_var is None:
            return None
        return self.running_mean, self.running_var

    @moments.setter
    def moments(self, moments: Moments | None) -> None:
        self.running_mean, self.running_var = moments or (None, None)
        # Without it the layer normalises by the batch also in evaluation.
        self.track_running_stats = moments is not None


@cache
def _calibrated(kind: type[nn.Module]) -> type[Calibrated]:
    return type(kind.__name__, (_OfAnotherClass, kind), {"each": issubclass(kind, INSTANCE_NORMS)})


BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
INSTANCE_NORMS = nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d


def convert_batch_norms(network: nn.Module) -> None:
    """Turn batch normalisations, and instance normalisations with running statistics, into
    `Calibrated`, in place."""
    for module in network.modules():
        if type(module) in BATCH_NORMS:
            module._buffers.clear()
            _change_class(module, BatchNorm)
        # A subclass keeps its own forward.
        elif isinstance(module, BATCH_NORMS) or (
            isinstance(module, INSTANCE_NORMS) and module.track_running_stats
        ):
            kind: Any = type(module)
            _change_class(module, _calibrated(kind))
            # PyTorch would raise this count, a buffer, in each pass.
            module.num_batches_tracked = None


def _change_class(module: Any, kind: type[Calibrated]) -> None:
    """Turn a module into another class in place; it has no moments at first."""
    # In place, so that hooks, and other modules that refer to it, stay.
    module.__class__ = kind
    module.moments = None


def build_module(
    network: UserNetwork,
    lengths: Mapping[str, int] | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> nn.Module:
    """Build a network and convert its batch normalisations. Random initial values depend on
    ``seed`` alone."""
    with seeded(seed), torch.device(device):
        module = network.build(lengths)
    convert_batch_norms(module)
    return module


def calibrate(
    network: nn.Module, layers: Mapping[str, Calibrated], inputs: tuple[Any, ...]
) -> None:
    with torch.no_grad(), calibrating(layers, compute_moments):
        call(network, inputs)


@contextmanager
def calibrating(
    layers: Mapping[str, Calibrated], compute_moments: Callable[[torch.Tensor, str, bool], Moments]
) -> Iterator[None]:
    """Set each layer's moments to those of its inputs in a forward pass in this context, averaged
    over calls.

    ``compute_moments`` takes a layer's input ``[batch, units, ...]``, its name, and its
    `Calibrated.each`.
    """
    taken: dict[str, list[Moments]] = {}

    def take(name: str, layer: Calibrated, inputs: tuple[torch.Tensor, ...]) -> None:
        layer.moments = compute_moments(inputs[0], name, layer.each)
        taken.setdefault(name, []).append(layer.moments)

    handles = []
    for name, layer in layers.items():
        handles.append(layer.register_forward_pre_hook(partial(take, name)))
    with hooked(handles):
        yield
    for name, moments in taken.items():
        layers[name].moments = average(moments)


def average(moments: Sequence[Moments]) -> Moments:
    mean, variance = (torch.stack(several).mean(0) for several in zip(*moments))
    return mean, variance


def compute_moments(x: torch.Tensor, layer: str = "", each: bool = False) -> Moments:
    """Return mean and variance ``[units]`` of ``[batch, units, ...]``. ``each``: average the
    variances of examples."""
    axes = [0, *range(2, x.ndim)]
    # Without correction, as batch normalisations compute it.
    variance, mean = torch.var_mean(x, dim=axes, correction=0)
    if each:
        variance = x.var(dim=axes[1:], correction=0).mean(0)
    return mean, variance
