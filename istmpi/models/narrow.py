"""A subnet as a network of its own: of the same class, narrower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from istmpi.engine.axes import Positions, narrowed
from istmpi.errors import ConfigError
from istmpi.models.architecture import Architecture
from istmpi.models.inspection import inspect
from istmpi.models.tables import Facts, table_of
from istmpi.models.trials import alike

EXAMPLES = 3


@dataclass(frozen=True)
class Narrow:
    """The network that has a subnet's units and nothing else."""

    network: Architecture
    settings: Mapping[str, Any]
    """The settings of the model that differ from the full network's."""
    scale: Mapping[str, float]
    """The factor of each unit group's contributions with which it computes the same as the subnet in training."""
    folded: Mapping[str, float]
    """The factors of parameters themselves, where ``scale`` cannot express them."""


def narrow_module(full: Architecture, held: Mapping[str, Positions], scale: Mapping[str, float]) -> Narrow:
    """The network of a subnet that holds these units; the class's code is run.

    ``scale`` is that with which the subnet is built. Raises ConfigError for a subnet that the class cannot be.
    """
    if blocks := sorted({*held} & {*full.blocks}):
        raise ConfigError(f"{full.name}: {', '.join(blocks)} deals out whole blocks; only units can be extracted.")
    code, lengths = full.code, narrowed(full.lengths, full.parameters, held)
    settings = code.settings_at({group: lengths[group] for group in full.groups if group not in full.blocks})
    narrower = replace(code, settings=settings)
    table = table_of(full.name, Facts(narrower.inputs, narrower.outputs), settings)
    table = table or replace(inspect(narrower), source=full.table.source)
    network = Architecture(full.name, table, next(iter(full.parameters.values())).dtype, narrower)
    changed = {name: value for name, value in settings.items() if value != code.settings[name]}
    factors = {group: full.contribution(group, lengths, scale) for group in network.summed}
    ratios = {name: network.weight_factor(name, network.lengths, factors) for name in full.parameters}
    folded = {name: full.weight_factor(name, lengths, scale) / ratio for name, ratio in ratios.items()}
    return Narrow(network, changed, factors, folded)


def require_same_outputs(
    full: Architecture,
    held: Mapping[str, Positions],
    scale: Mapping[str, float],
    narrow: Narrow,
    parts: Mapping[str, torch.Tensor],
) -> None:
    """Refuse, with a ConfigError, a network that does not compute the same as the subnet of these ``parts``."""
    network, outputs = narrow.network, []
    shapes = {name: parameter.pattern.shape(network.lengths) for name, parameter in network.parameters.items()}
    if shapes != {name: tuple(part.shape) for name, part in parts.items()}:
        raise _refusal(full, narrow, "has other parameters")
    lengths = narrowed(full.lengths, full.parameters, held)
    alone = {name: part * narrow.folded[name] for name, part in parts.items()}
    for described, its, factors, values in (
        (full, lengths, scale, parts),
        (network, network.lengths, narrow.scale, alone),
    ):
        built = described.build(its, factors).double().eval()
        for name, parameter in built.named_parameters():
            parameter.data = values[name].double()
        outputs.append(described.code.forward(built, *described.code.examples(EXAMPLES, torch.float64)))
    if not alike(*outputs):
        raise _refusal(full, narrow, "computes something else")


def _refusal(full: Architecture, narrow: Narrow, problem: str) -> ConfigError:
    settings = ", ".join(f"{name} = {value!r}" for name, value in narrow.settings.items())
    return ConfigError(
        f"{full.name}: a network of this class with {settings} {problem} than the subnet, for what its constructor "
        f"makes depends on more than that. Deal out other groups (method.partition)."
    )
