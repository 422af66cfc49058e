"""Batch normalisation without running statistics. Moments can be set when the full network is
calibrated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from istmpi.errors import ConfigError
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


class Members(Protocol):
    """The processes that divide a batch."""

    has_part: bool
    """False if the example that this process computes does not count."""

    def average(self, values: torch.Tensor) -> None:
        """Overwrite flat values by their mean over the processes. Collective."""


class BatchNorm(Calibrated):
    members: Members | None = None
    """The processes over whose examples the mean and variance are taken; None for this process
    alone."""
    is_synchronised = False
    """True if the user's class has `nn.SyncBatchNorm` here."""

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
        if self.moments is None and self.members is not None:
            normalised = _NormaliseTogether.apply(x, self.members, self.eps)
            return self._scale(normalised)
        mean, variance = self.moments or (None, None)
        return functional.batch_norm(
            x, mean, variance, self.weight, self.bias, training=self.moments is None, eps=self.eps
        )

    def _scale(self, normalised: torch.Tensor) -> torch.Tensor:
        if self.weight is None or self.bias is None:
            return normalised
        weight = _along_units(self.weight, normalised)
        scaled = normalised * weight + _along_units(self.bias, normalised)
        return scaled.to(normalised.dtype)


class _NormaliseTogether(torch.autograd.Function):
    """Normalises ``[batch, units, ...]`` over a batch that several processes divide.

    It is `nn.SyncBatchNorm`, also on CPUs. Each process adds up its values and, in the backward
    pass, its gradients. Processes average these sums and their counts, whose quotients stay.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, members: Members, eps: float) -> torch.Tensor:
        # Sums of many values in bfloat16 lose digits.
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        axes = _list_averaged_axes(x)
        count = values.new_tensor([values.numel() // values.shape[1]])
        share = float(members.has_part)
        sums = share * torch.cat([values.sum(axes), count])
        members.average(sums)
        count = sums[-1]
        mean = _along_units(sums[:-1] / count, x)
        # decision 97: in a second exchange, because differences of squares would lose digits.
        squares = share * (values - mean).square().sum(axes)
        members.average(squares)
        deviation = _along_units((squares / count + eps).sqrt(), x)
        ctx.members = members
        ctx.share = share
        ctx.save_for_backward(x, mean, deviation, count)
        return ((values - mean) / deviation).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        x, mean, deviation, count = ctx.saved_tensors
        normalised = (x.to(mean.dtype) - mean) / deviation
        axes = _list_averaged_axes(x)
        of_gradients = gradient.to(mean.dtype).sum(axes)
        of_products = (gradient * normalised).sum(axes)
        sums = ctx.share * torch.stack([of_gradients, of_products])
        ctx.members.average(sums.view(-1))
        of_gradients, of_products = sums / count
        through_moments = _along_units(of_gradients, x)
        through_moments = through_moments + normalised * _along_units(of_products, x)
        result = ctx.share * (gradient - through_moments) / deviation
        return result.to(x.dtype), None, None


def _list_averaged_axes(x: torch.Tensor) -> list[int]:
    """Return the axes of ``[batch, units, ...]`` without that of the units."""
    return [0, *range(2, x.ndim)]


def _along_units(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return ``[units]`` in a shape that broadcasts over ``[batch, units, ...]``."""
    return values.view(1, -1, *[1] * (x.ndim - 2))


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
    module: Any
    for module in network.modules():
        kind: Any = type(module)
        if kind in (*BATCH_NORMS, nn.SyncBatchNorm):
            module._buffers.clear()
            _change_class(module, BatchNorm)
            module.is_synchronised = kind is nn.SyncBatchNorm
        # A subclass keeps its own forward.
        elif isinstance(module, BATCH_NORMS) or (
            isinstance(module, INSTANCE_NORMS) and module.track_running_stats
        ):
            _change_class(module, _calibrated(kind))
            # PyTorch would raise this count, a buffer, in each pass.
            module.num_batches_tracked = None


def _change_class(module: Any, kind: type[Calibrated]) -> None:
    """Turn a module into another class in place; it has no moments at first."""
    # In place, so that hooks, and other modules that refer to it, stay.
    module.__class__ = kind
    module.moments = None


def select_synchronised(layers: Mapping[str, Calibrated], everywhere: bool) -> dict[str, BatchNorm]:
    """Return the batch normalisations whose mean and variance are over a whole replica group.

    ``everywhere``: False for those alone that are `nn.SyncBatchNorm` in the user's class. Raises
    ConfigError if a layer is of another class, which computes its own moments.
    """
    selected = {}
    for name, layer in layers.items():
        if isinstance(layer, BatchNorm):
            if everywhere or layer.is_synchronised:
                selected[name] = layer
        elif everywhere and not layer.each:
            raise ConfigError(
                f"train.sync_batch_norm does not go with {name}, a {type(layer).__name__}, which "
                "computes its own moments. Use nn.BatchNorm or nn.SyncBatchNorm, or leave it out."
            )
    return selected


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
    axes = _list_averaged_axes(x)
    # Without correction, as batch normalisations compute it.
    variance, mean = torch.var_mean(x, dim=axes, correction=0)
    if each:
        variance = x.var(dim=axes[1:], correction=0).mean(0)
    return mean, variance
