"""A checkpoint's network as layers of plain PyTorch and their tensors, with the calibration as
running statistics.

The full network's factors of products are folded into the weights. A chain (an mlp) also gets a
first layer that normalises examples, and a last one that rescales outputs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from istmpi.checkpoint.reader import Checkpoint, Tensor
from istmpi.checkpoint.state import Moments
from istmpi.engine.axes import ITEMSIZE
from istmpi.errors import ConfigError
from istmpi.models.architecture import Architecture
from istmpi.models.joined import Factor, changes, of_rows
from istmpi.models.norms import BatchNorm

_CHUNK = 2**24


@dataclass(frozen=True)
class Values:
    """A tensor, in the checkpoint or in memory, and the factor that multiplies it."""

    source: Tensor | np.ndarray
    factor: Factor = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def dtype(self) -> str:
        return str(self.source.dtype)

    @property
    def nbytes(self) -> int:
        return (
            self.source.nbytes
            if isinstance(self.source, np.ndarray)
            else prod(self.shape) * ITEMSIZE[self.dtype]
        )

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield the values as flat bytes, little-endian: some rows at a time from a checkpoint, an
        array at once."""
        if isinstance(self.source, np.ndarray):
            values = self.source
            if changes(self.factor):
                values = values * np.asarray(self.factor, dtype=values.dtype)
            yield np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            return
        rows, row = self.shape[0], self.nbytes // self.shape[0]
        step = max(_CHUNK // row, 1)
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            out = np.empty((stop - start) * row, dtype=np.uint8)
            self.source.read_bytes(start, stop, out)
            if changes(self.factor):
                values = out.view(self.dtype).reshape(stop - start, *self.shape[1:])
                values *= np.asarray(of_rows(self.factor, start, stop), dtype=values.dtype)
            yield out


@dataclass(frozen=True)
class Layer:
    """A module, with tensors by their names in its state. In a chain, it is ``getattr(torch.nn,
    kind)(**settings)``."""

    name: str
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Values] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """The modules with a state; each tensor is in only one of them."""

    layers: list[Layer]
    ties: Mapping[str, str] = field(default_factory=dict)
    """Further names of tensors that several modules share, each with the tensor's name in
    ``layers``."""
    untied: tuple[str, ...] = ()
    """The names in ``layers`` of tensors that the class shares, but that differ in the full
    network."""
    problem: str = ""
    """The reason why the class cannot load this state; empty if it can."""
    calls: Mapping[tuple[Any, ...], Any] = field(default_factory=dict)
    """Factors of sums that no weight can hold, for `istmpi.models.scaling.multiply_sums`."""
    module: nn.Module | None = None
    """The network itself, if no plain class makes it; else None."""

    @property
    def tensors(self) -> dict[str, Values]:
        return {
            _name(layer.name, key): values
            for layer in self.layers
            for key, values in layer.tensors.items()
        }


def chain_state(checkpoint: Checkpoint, moments: Moments) -> State:
    """Return the layers that compute outputs from examples as they are in the data, without
    dropout.

    A stage's linear layer has the name STAGE. A layer after it has the name STAGE_NAME. Raises
    ConfigError for a layer that is not PyTorch's.
    """
    layers = []
    network, dtype = checkpoint.architecture, np.dtype(checkpoint.header.run.model.dtype)
    if checkpoint.normalisation:
        mean, std = (values.astype(dtype) for values in checkpoint.normalisation.whole)
        layers.append(_elementwise("input", False, running_mean=mean, running_var=std**2))
    built = network.without_values({})
    for stage in network.stages:
        for place, (key, module) in enumerate(built.get_submodule(stage).named_children()):
            names = {kind: f"{stage}.{key}.{kind}" for kind in module.state_dict()}
            scale = checkpoint.header.full_scale
            tensors = {
                kind: Values(checkpoint.tensors[name], network.weight_factor(name, scale))
                for kind, name in names.items()
            }
            if isinstance(module, BatchNorm):
                tensors |= _running(moments[stage])
            if not isinstance(module, nn.Dropout):
                name = f"{stage}_{key}" if place else stage
                layers.append(Layer(name, *_description(module, network.lengths[stage]), tensors))
    if checkpoint.rescaling:
        factor, shift = (values.astype(dtype) for values in checkpoint.rescaling)
        neutral = {"running_mean": np.zeros_like(factor), "running_var": np.ones_like(factor)}
        layers.append(_elementwise("output", True, weight=factor, bias=shift, **neutral))
    return State(layers)


def _elementwise(name: str, affine: bool, **tensors: np.ndarray) -> Layer:
    settings = {"num_features": len(tensors["running_mean"]), "eps": 1e-30, "affine": affine}
    return Layer(
        name, "BatchNorm1d", settings, {key: Values(values) for key, values in tensors.items()}
    )


def _running(moments: tuple[torch.Tensor, torch.Tensor]) -> dict[str, Values]:
    return {
        key: Values(values.numpy())
        for key, values in zip(("running_mean", "running_var"), moments, strict=True)
    }


def _description(module: nn.Module, units: int) -> tuple[str, dict[str, Any]]:
    if isinstance(module, BatchNorm):
        return "BatchNorm1d", {
            "num_features": units,
            "eps": module.eps,
            "affine": module.weight is not None,
        }
    if isinstance(module, nn.Linear):
        settings = {"in_features": module.in_features, "out_features": module.out_features}
        return "Linear", {**settings, "bias": module.bias is not None}
    if isinstance(module, nn.LayerNorm):
        return "LayerNorm", {"normalized_shape": units, "eps": module.eps}
    if module.state_dict() or not hasattr(nn, type(module).__name__):
        raise ConfigError(
            f"a layer {type(module).__name__} cannot be exported; only PyTorch's layers can."
        )
    return type(module).__name__, {}


def own_state(
    values: Mapping[str, Any], scale: Mapping[str, float], moments: Moments, network: Architecture
) -> State:
    """Return the state of a plain class, with the full network's factors (``scale``) multiplied
    into ``values``.

    A product's factor is in its weight; a residual block's factor is in all parameters of the
    block's ends. Layers that share a weight, but have different factors, each get their own weight.
    Raises ConfigError for a bfloat16 buffer.
    """
    module = network.plain()
    name_of = {id(parameter): name for name, parameter in module.named_parameters()}
    layers, ties, path_of, copies = [], {}, {}, {}
    for path, layer in module.named_modules(remove_duplicate=False):
        first_path = path_of.setdefault(id(layer), path)
        tensors: dict[str, Values] = {}
        for key, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
            name, here = name_of[id(parameter)], _name(path, key)
            factor = network.weight_factor(
                name if name in network.table.folded else _name(first_path, key), scale
            )
            key_of_factor = factor.tobytes() if isinstance(factor, np.ndarray) else factor
            first = copies.setdefault(name, {}).setdefault(key_of_factor, here)
            if first != here:
                ties[here] = first
            else:
                tensors[key] = Values(values[name], factor)
        if path in moments:
            buffers = _running(moments[path]) | {"num_batches_tracked": Values(np.array(0))}
        else:
            buffers = _buffers(network.name, path, layer)
        if first_path != path:
            ties |= {_name(path, key): _name(first_path, key) for key in buffers}
        elif tensors or buffers:
            layers.append(Layer(path, type(layer).__name__, {}, tensors | buffers))
    untied = tuple(name for names in copies.values() for name in [*names.values()][1:])
    problem, calls = "", network.scaled_calls(scale)
    if calls:
        where = next(iter(calls))
        problem = f"{where[1]} in {where[0] or 'its forward'} has a factor in the full network that no weight can hold"
    elif untied:
        problem = f"{untied[0]} shares its tensor with another layer that has another factor in the full network"
    elif unknown := next(
        (name for name in moments if module.get_submodule(name).running_mean is None), ""
    ):
        problem = f"{unknown} has no running statistics in its class (track_running_stats=False)"
    return State(layers, ties, untied, problem, calls)


def _name(path: str, key: str) -> str:
    return f"{path}.{key}".lstrip(".")


def _buffers(network: str, path: str, layer: nn.Module) -> dict[str, Values]:
    buffers = {}
    for key, values in layer.named_buffers(recurse=False):
        if key in layer._non_persistent_buffers_set:
            continue
        if values.dtype == torch.bfloat16:
            raise ConfigError(
                f"{network}: its buffer {_name(path, key)} is of bfloat16, which NumPy does not support, so "
                "the network cannot be exported. Make it float32."
            )
        buffers[key] = Values(values.numpy())
    return buffers
