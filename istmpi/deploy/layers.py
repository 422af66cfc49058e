"""A checkpoint's network as layers of plain PyTorch and their tensors.

The calibration is in their running statistics.
The full network's factors of products are folded into the weights. A chain (an mlp) also gets a
first layer that normalises examples, and a last one that rescales outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from istmpi.checkpoint.reader import Checkpoint, Tensor
from istmpi.checkpoint.state import Moments
from istmpi.engine.axes import ITEMSIZE
from istmpi.errors import ConfigError
from istmpi.network.architecture import Architecture
from istmpi.network.joined import Factor, changes, of_rows
from istmpi.network.norms import BatchNorm
from istmpi.network.unheld import find_unheld_factor

_CHUNK = 2**24  # bytes


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
        if isinstance(self.source, np.ndarray):
            return self.source.nbytes
        return prod(self.shape) * ITEMSIZE[self.dtype]

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield the values as flat bytes, little-endian.

        A checkpoint's come some rows at a time, an array's at once.
        """
        if isinstance(self.source, np.ndarray):
            values = self.source
            if changes(self.factor):
                values = values * np.asarray(self.factor, dtype=values.dtype)
            yield np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            return
        rows = self.shape[0]
        bytes_of_row = self.nbytes // rows
        # At least one row, even if it is longer than a chunk.
        step = max(_CHUNK // bytes_of_row, 1)
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            out = np.empty((stop - start) * bytes_of_row, dtype=np.uint8)
            self.source.read_bytes(start, stop, out)
            if changes(self.factor):
                values = out.view(self.dtype).reshape(stop - start, *self.shape[1:])
                values *= np.asarray(of_rows(self.factor, start, stop), dtype=values.dtype)
            yield out


@dataclass(frozen=True)
class Layer:
    """A module, with tensors by their names in its state.

    In a chain, it is ``getattr(torch.nn, kind)(**settings)``.
    """

    name: str
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Values] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """The modules with a state; each tensor is in only one of them."""

    layers: list[Layer]
    ties: Mapping[str, str] = field(default_factory=dict)
    """Further names of tensors that several modules share, each with its name in ``layers``."""
    problem: str = ""
    """The reason why the class cannot load this state; empty if it can."""
    scale: Callable[[nn.Module], None] | None = None
    """Makes the class with this state multiply its sums by factors that no weight can hold; None
    if there are none."""
    module: nn.Module | None = None
    """The network itself, if no plain class makes it; else None."""

    @property
    def tensors(self) -> dict[str, Values]:
        tensors = {}
        for layer in self.layers:
            for key, values in layer.tensors.items():
                tensors[_name(layer.name, key)] = values
        return tensors


def chain_state(checkpoint: Checkpoint, moments: Moments) -> State:
    """Return the layers that compute outputs from examples as they are in the data.

    Dropout is left out. A stage's linear layer has the name STAGE. A layer after it has the name
    STAGE_NAME. Raises ConfigError for a layer that is not PyTorch's.
    """
    layers = []
    network = checkpoint.architecture
    dtype = checkpoint.dtype
    if checkpoint.normalisation:
        mean, std = (values.astype(dtype) for values in checkpoint.normalisation.whole)
        # A batch normalisation divides by the root of the variance.
        layers.append(_elementwise("input", False, running_mean=mean, running_var=std**2))
    # Only the kinds of its layers are needed: the values are in the checkpoint.
    built = network.without_values({})
    for stage in network.stages:
        for place, (key, module) in enumerate(built.get_submodule(stage).named_children()):
            if isinstance(module, nn.Dropout):
                continue
            tensors = {}
            for kind in module.state_dict():
                name = f"{stage}.{key}.{kind}"
                factor = network.weight_factor(name, checkpoint.header.full_scale)
                tensors[kind] = Values(checkpoint.tensors[name], factor)
            if isinstance(module, BatchNorm):
                # A chain names its normalisations by their stages.
                tensors |= _name_moments(moments[stage])
            kind, settings = _describe(module, network.lengths[stage])
            name_of_layer = f"{stage}_{key}" if place else stage
            layers.append(Layer(name_of_layer, kind, settings, tensors))
    if checkpoint.rescaling:
        factor, shift = (values.astype(dtype) for values in checkpoint.rescaling)
        neutral = {"running_mean": np.zeros_like(factor), "running_var": np.ones_like(factor)}
        layers.append(_elementwise("output", True, weight=factor, bias=shift, **neutral))
    return State(layers)


def _elementwise(name: str, affine: bool, **tensors: np.ndarray) -> Layer:
    """Return a batch normalisation that only shifts and scales each number."""
    # PyTorch adds eps to the variance; 0 would divide by it for a number that never varies.
    settings = {"num_features": len(tensors["running_mean"]), "eps": 1e-30, "affine": affine}
    values = {key: Values(array) for key, array in tensors.items()}
    return Layer(name, "BatchNorm1d", settings, values)


def _name_moments(moments: tuple[torch.Tensor, torch.Tensor]) -> dict[str, Values]:
    mean, variance = moments
    return {
        "running_mean": Values(mean.numpy()),
        "running_var": Values(variance.numpy()),
    }


def _describe(module: nn.Module, units: int) -> tuple[str, dict[str, Any]]:
    """Return a module's class in torch.nn and its settings. ``units``: those of its stage."""
    if isinstance(module, BatchNorm):
        affine = module.weight is not None
        return "BatchNorm1d", {"num_features": units, "eps": module.eps, "affine": affine}
    if isinstance(module, nn.Linear):
        return "Linear", {
            "in_features": module.in_features,
            "out_features": module.out_features,
            "bias": module.bias is not None,
        }
    if isinstance(module, nn.LayerNorm):
        return "LayerNorm", {"normalized_shape": units, "eps": module.eps}
    if module.state_dict() or not hasattr(nn, type(module).__name__):
        raise ConfigError(
            f"a layer {type(module).__name__} cannot be exported; only PyTorch's layers can."
        )
    return type(module).__name__, {}


def collect_state(
    values: Mapping[str, Any], scale: Mapping[str, float], moments: Moments, network: Architecture
) -> State:
    """Return the state of a plain class.

    The full network's factors (``scale``) are multiplied into ``values``. A product's factor is in
    its weight; a residual block's factor is in all parameters of the block's ends. They are factors
    of the class's sums if a weight has uses with different factors. Raises ConfigError for a
    bfloat16 buffer.
    """
    module = network.plain()
    find_factor = partial(network.weight_factor, scale=scale)
    collection = _Collection.from_module(module, values, moments, network, find_factor)
    problem = find_unheld_factor(network, scale) or collection.describe_untied()
    if not problem:
        problem = _find_problem_of_moments(module, moments)
        return State(collection.layers, collection.ties, problem)
    collection = _Collection.from_module(module, values, moments, network, lambda name: 1.0)
    return State(
        collection.layers,
        collection.ties,
        problem,
        scale=partial(network.scale_sums, lengths=network.lengths, scale=scale),
    )


@dataclass
class _Collection:
    """The layers of a plain class, and the ties between their tensors, as far as they are
    collected."""

    values: Mapping[str, Any]
    moments: Moments
    network: Architecture
    names: Mapping[int, str]
    """The name of each parameter, by its id."""
    find_factor: Callable[[str], Factor]
    """Returns the factor of a parameter by its name."""
    layers: list[Layer] = field(default_factory=list)
    ties: dict[str, str] = field(default_factory=dict)
    """The place of each tensor that is another one's, and the place of the other."""
    copies: dict[str, dict[object, str]] = field(default_factory=dict)
    """The first place of each parameter, by its name and factor."""
    _first_paths: dict[int, str] = field(default_factory=dict)

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        values: Mapping[str, Any],
        moments: Moments,
        network: Architecture,
        find_factor: Callable[[str], Factor],
    ) -> _Collection:
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        collection = cls(values, moments, network, names, find_factor)
        # A shared layer comes at each of its paths, for a state dict names all of them.
        for path, layer in module.named_modules(remove_duplicate=False):
            collection._add(path, layer)
        return collection

    def describe_untied(self) -> str:
        """Return a place of a tensor that the class shares with a place of another factor, in
        words; empty if there is none."""
        for places in self.copies.values():
            # The first place keeps the shared weight; the others have other factors.
            for name in [*places.values()][1:]:
                return (
                    f"{name} shares its tensor with another layer that has another factor in the "
                    "full network"
                )
        return ""

    def _add(self, path: str, layer: nn.Module) -> None:
        """Add the tensors of the layer at ``path``."""
        # A layer that the class holds twice is one layer at its first path.
        first_path = self._first_paths.setdefault(id(layer), path)
        tensors = self._collect_weights(path, first_path, layer)
        if path in self.moments:
            buffers = _name_moments(self.moments[path])
            # PyTorch loads no state without this count, which evaluation does not use.
            buffers["num_batches_tracked"] = Values(np.array(0))
        else:
            buffers = _collect_buffers(self.network.name, path, layer)
        if first_path != path:
            for key in buffers:
                self.ties[_name(path, key)] = _name(first_path, key)
        elif tensors or buffers:
            self.layers.append(Layer(path, type(layer).__name__, {}, tensors | buffers))

    def _collect_weights(self, path: str, first_path: str, layer: nn.Module) -> dict[str, Values]:
        """Return the layer's weights that have no place yet; tie the others to theirs."""
        tensors: dict[str, Values] = {}
        for key, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
            name = self.names[id(parameter)]
            place = _name(path, key)
            # A folded factor is of the parameter, any other of the layer in which it stands.
            scaled = name if name in self.network.table.folded else _name(first_path, key)
            factor = self.find_factor(scaled)
            # An array cannot be a dictionary's key, but its bytes can.
            factor_key = factor.tobytes() if isinstance(factor, np.ndarray) else factor
            first_place = self.copies.setdefault(name, {}).setdefault(factor_key, place)
            if first_place == place:
                tensors[key] = Values(self.values[name], factor)
            else:
                self.ties[place] = first_place
        return tensors


def _find_problem_of_moments(module: nn.Module, moments: Moments) -> str:
    """Return the reason why a plain class cannot load the moments of its batch normalisations;
    empty if it can."""
    for name in moments:
        if module.get_submodule(name).running_mean is None:
            return f"{name} has no running statistics in its class (track_running_stats=False)"
    return ""


def _name(path: str, key: str) -> str:
    return f"{path}.{key}".lstrip(".")


def _collect_buffers(network: str, path: str, layer: nn.Module) -> dict[str, Values]:
    """Return the buffers of a layer that a state dict has, without those of its children."""
    buffers = {}
    for key, values in layer.named_buffers(recurse=False):
        # PyTorch leaves these out of a state dict, too.
        if key in layer._non_persistent_buffers_set:
            continue
        if values.dtype == torch.bfloat16:
            raise ConfigError(
                f"{network}: its buffer {_name(path, key)} is of bfloat16, which NumPy does not "
                "support, so the network cannot be exported. Make it float32."
            )
        buffers[key] = Values(values.numpy())
    return buffers
