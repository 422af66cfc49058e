"""A checkpoint's network of one's own under the names of its own state: ``Class(...).load_state_dict`` takes it."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from istmpi.checkpoint.reader import Checkpoint
from istmpi.checkpoint.state import Moments
from istmpi.deploy.layers import Layer, Scaled, Values
from istmpi.errors import ConfigError
from istmpi.models.architecture import Architecture


@dataclass(frozen=True)
class OwnState:
    """All that the class's own state has, every tensor once."""

    layers: list[Layer]
    """The modules that have a state."""
    ties: dict[str, str]
    """The other names of a tensor that several modules share, each with the one that it has in the layers."""
    untied: tuple[str, ...]
    """What the class shares and the full network does not: names in the layers whose values differ from each other."""
    problem: str = ""
    """Why the class cannot load this state; empty where it can."""


def own_state(checkpoint: Checkpoint, moments: Moments, network: Architecture) -> OwnState:
    """The state of the plain class, with the calibration as running statistics.

    What the full network multiplies a product by is folded into its weight, and what it multiplies the end of a block
    by into all that this has; two layers that share a weight may have different factors, and then no longer share
    it. What examples are normalised with is no part of it.
    """
    module = network.plain()
    name_of = {id(parameter): name for name, parameter in module.named_parameters()}
    layers, ties, path_of, copies = [], {}, {}, {}
    for path, layer in module.named_modules(remove_duplicate=False):
        tensors: dict[str, Values] = {}
        again = path_of.setdefault(id(layer), path) != path
        for key, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
            name, mine = name_of[id(parameter)], _name(path, key)
            product = path_of[id(layer)] if key == "weight" else ""
            known = network.lengths, checkpoint.header.full_scale
            factor = network.factor(product, *known) * network.end_factor(path_of[id(layer)], *known)
            first = copies.setdefault(name, {}).setdefault(factor, mine)
            if first != mine:
                ties[mine] = first
            else:
                tensors[key] = checkpoint.tensors[name] if factor == 1 else Scaled(checkpoint.tensors[name], factor)
        if path in moments:
            mean, variance = (values.numpy() for values in moments[path])
            buffers = {"running_mean": mean, "running_var": variance, "num_batches_tracked": np.array(0)}
        else:
            buffers = _buffers(network.name, path, layer)
        if again:
            ties |= {_name(path, key): _name(path_of[id(layer)], key) for key in buffers}
        elif tensors or buffers:
            layers.append(Layer(path, type(layer).__name__, {}, tensors | buffers))
    untied = tuple(name for found in copies.values() for name in [*found.values()][1:])
    problem = ""
    if untied:
        problem = (
            f"{untied[0]} is in its class another layer's tensor, too, which has another factor in the full network"
        )
    elif unknown := next((name for name in moments if module.get_submodule(name).running_mean is None), ""):
        problem = f"{unknown} has no running statistics in its class (track_running_stats=False)"
    return OwnState(layers, ties, untied, problem)


def _name(path: str, key: str) -> str:
    return f"{path}.{key}".lstrip(".")


def _buffers(network: str, path: str, layer: nn.Module) -> dict[str, Values]:
    """The buffers of a module that its state has."""
    found = {}
    for key, values in layer.named_buffers(recurse=False):
        if key in layer._non_persistent_buffers_set:
            continue
        if values.dtype == torch.bfloat16:
            raise ConfigError(
                f"{network}: its buffer {_name(path, key)} is of bfloat16, which NumPy does not know; such a network "
                f"cannot be exported. Let the buffer be of float32."
            )
        found[key] = values.numpy()
    return found
