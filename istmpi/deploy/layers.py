"""A checkpoint's network as a chain of plain PyTorch layers, with the calibration as running statistics.

What examples are normalised with becomes a first layer of its own, what outputs are rescaled with a last one. Only
what the full network multiplies a product by is folded into its weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from torch import nn

from istmpi.checkpoint.reader import Checkpoint, Tensor
from istmpi.checkpoint.state import Moments
from istmpi.engine.axes import ITEMSIZE
from istmpi.errors import ConfigError
from istmpi.models.norms import BatchNorm

_CHUNK = 2**24
"""Bytes that are in memory at a time."""


@dataclass(frozen=True)
class Scaled:
    """A tensor of the checkpoint, multiplied by a number as it is read."""

    tensor: Tensor
    factor: float

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    def read_bytes(self, first: int, last: int, out: np.ndarray) -> None:
        """Rows as the file would have them, into flat uint8 memory."""
        self.tensor.read_bytes(first, last, out)
        values = out.view(self.dtype)
        values *= values.dtype.type(self.factor)


Values = Tensor | Scaled | np.ndarray
"""Of a tensor: in the checkpoint, or in memory where it is small."""


@dataclass(frozen=True)
class Layer:
    """``getattr(torch.nn, kind)(**settings)``, with the tensors of its state by their names in it."""

    name: str
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Values] = field(default_factory=dict)


def plain_layers(checkpoint: Checkpoint, moments: Moments) -> list[Layer]:
    """The layers from the examples as they are in the data to the outputs; dropout, which does nothing here, left out.

    A stage's product has the stage's name; the layers behind it have their own name behind that.
    """
    layers = []
    network = checkpoint.architecture
    if checkpoint.normalisation:
        dtype = np.dtype(checkpoint.header.run.model.dtype)
        mean, std = (values.astype(dtype) for values in checkpoint.normalisation.whole)
        settings = {"num_features": len(mean), "eps": 0.0, "affine": False}
        layers.append(Layer("input", "BatchNorm1d", settings, {"running_mean": mean, "running_var": std**2}))
    built = network.without_values({})
    for stage in network.stages:
        for place, (key, module) in enumerate(built.get_submodule(stage).named_children()):
            name = f"{stage}_{key}" if place else stage
            tensors: dict[str, Values] = {
                kind: checkpoint.tensors[f"{stage}.{key}.{kind}"] for kind in module.state_dict()
            }
            factor = 1.0 if place else network.factor(f"{stage}.{key}", network.lengths, checkpoint.header.full_scale)
            if factor != 1:
                tensors["weight"] = Scaled(checkpoint.tensors[f"{stage}.{key}.weight"], factor)
            if isinstance(module, BatchNorm):
                running = (values.numpy() for values in moments[stage])
                tensors |= dict(zip(("running_mean", "running_var"), running, strict=True))
            if not isinstance(module, nn.Dropout):
                layers.append(Layer(name, *_description(module, network.lengths[stage]), tensors))
    if checkpoint.rescaling:
        layers.append(_rescaling(*checkpoint.rescaling, checkpoint.header.run.model.dtype))
    return layers


def _rescaling(factor: np.ndarray, shift: np.ndarray, dtype: str) -> Layer:
    factor, shift = factor.astype(dtype), shift.astype(dtype)
    settings = {"num_features": len(factor), "eps": 0.0, "affine": True}
    neutral = {"running_mean": np.zeros_like(factor), "running_var": np.ones_like(factor)}
    return Layer("output", "BatchNorm1d", settings, {"weight": factor, "bias": shift, **neutral})


def _description(module: nn.Module, units: int) -> tuple[str, dict[str, Any]]:
    """The plain layer for a module of ours, and how it is made."""
    if isinstance(module, BatchNorm):
        return "BatchNorm1d", {"num_features": units, "eps": module.eps, "affine": module.weight is not None}
    if isinstance(module, nn.Linear):
        settings = {"in_features": module.in_features, "out_features": module.out_features}
        return "Linear", {**settings, "bias": module.bias is not None}
    if isinstance(module, nn.LayerNorm):
        return "LayerNorm", {"normalized_shape": units, "eps": module.eps}
    if module.state_dict() or not hasattr(nn, type(module).__name__):
        raise ConfigError(f"a layer {type(module).__name__} cannot be exported; it is none of PyTorch's own.")
    return type(module).__name__, {}


def shape_of(values: Values) -> tuple[int, ...]:
    return values.shape


def dtype_of(values: Values) -> str:
    return values.dtype.name if isinstance(values, np.ndarray) else values.dtype


def bytes_of(values: Values) -> int:
    return values.nbytes if isinstance(values, np.ndarray) else prod(values.shape) * ITEMSIZE[values.dtype]


def chunks(values: Values) -> Iterator[np.ndarray]:
    """The values as flat bytes, little-endian, some rows at a time."""
    if isinstance(values, np.ndarray):
        yield np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return
    rows, row = values.shape[0], bytes_of(values) // values.shape[0]
    step = max(_CHUNK // row, 1)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        out = np.empty((stop - start) * row, dtype=np.uint8)
        values.read_bytes(start, stop, out)
        yield out
