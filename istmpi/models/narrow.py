"""A subnet as a network of its own: of the same class, narrower, perhaps with fewer blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from istmpi.engine.axes import Parameter, Positions, narrowed
from istmpi.errors import ConfigError
from istmpi.models.architecture import Architecture
from istmpi.models.table import Blocks
from istmpi.models.tables import Facts, table_of

if TYPE_CHECKING:
    import torch

EXAMPLES = 3
"""Examples on which a subnet and the network that is made of it are compared."""
ROUNDING = 1e-12


@dataclass(frozen=True)
class Narrow:
    """The network that has a subnet's units and nothing else, and their places in the full network."""

    network: Architecture
    settings: Mapping[str, Any]
    """The settings of the model that differ from the full network's."""
    names: Mapping[str, str]
    """The name of each parameter in the full network: blocks are numbered anew."""
    scale: Mapping[str, float]
    """The factor of each unit group's contributions with which it computes the same as the subnet in training."""
    groups: Mapping[str, str]
    """The group of the full network whose units each unit group has."""
    folded: Mapping[str, float] = field(default_factory=dict)
    """Factors of some parameters themselves, where ``scale`` cannot express them: a group of one unit is none."""


def narrow_module(full: Architecture, held: Mapping[str, Positions], scale: Mapping[str, float]) -> Narrow:
    """The network of a subnet that holds these units; the class's code is run.

    ``scale`` is that with which the subnet is built. Raises ConfigError for a subnet that the class cannot be.
    """
    code, absent = full.code, _absent(full.blocks, held)
    names = {new: name for name in full.parameters if (new := _renumbered(name, absent)) is not None}
    groups = _groups(full, names)
    lengths = narrowed(full.lengths, full.parameters, held)
    widths = {group: code.widths[group].length - len(full.blocks[group]) + lengths[group] for group in full.blocks}
    widths |= {group: lengths[source] for group, source in groups.items() if group not in full.blocks}
    settings = code.settings_at(widths)
    narrower = replace(code, settings=settings)
    table = table_of(full.name, Facts(narrower.inputs, narrower.outputs), settings)
    if table is None:
        from istmpi.models.inspection import inspect

        table = replace(inspect(narrower), source=full.table.source)
    dtype = next(iter(full.parameters.values())).dtype
    network = Architecture(full.name, table, dtype, narrower)
    changed = {name: value for name, value in settings.items() if value != code.settings[name]}
    factors = _scale_of(full, network, lengths, scale, groups)
    folded = _folded(names, (full, lengths, scale), (network, network.lengths, factors))
    return Narrow(network, changed, names, factors, groups, folded)


def require_same_outputs(
    full: Architecture,
    held: Mapping[str, Positions],
    scale: Mapping[str, float],
    narrow: Narrow,
    parts: Mapping[str, torch.Tensor],
) -> None:
    """Refuse, with a ConfigError, a network that does not compute the same as the subnet in training.

    ``parts``: the network's parameters by its own names. A class may depend on the place of a block, or on the number
    of blocks.
    """
    import torch

    from istmpi.models.trials import alike

    network = narrow.network
    shapes = {name: parameter.pattern.shape(network.lengths) for name, parameter in network.parameters.items()}
    if shapes != {name: tuple(part.shape) for name, part in parts.items()}:
        raise _refusal(full, narrow, "has other parameters")
    subnet = {narrow.names[name]: part for name, part in parts.items()}
    alone = {name: part * narrow.folded.get(name, 1.0) for name, part in parts.items()}
    lengths, outputs = narrowed(full.lengths, full.parameters, held), []
    for described, its, factors, values in (
        (full, lengths, scale, subnet),
        (network, network.lengths, narrow.scale, alone),
    ):
        built = described.build(its, factors).double().eval()
        for name, parameter in built.named_parameters():
            parameter.data = values[name].double()
        outputs.append(described.code.forward(built, *described.code.examples(EXAMPLES, torch.float64)))
    if not alike(*outputs):
        raise _refusal(full, narrow, "computes something else")


def _scale_of(
    full: Architecture,
    network: Architecture,
    lengths: Mapping[str, int],
    scale: Mapping[str, float],
    groups: Mapping[str, str],
) -> dict[str, float]:
    """The factors of contributions in a network that is a subnet, of these lengths, of a full one; 1 is left out."""
    summed = network.summed
    factors = {group: full.contribution(groups.get(group, group), lengths, scale) for group in network.groups}
    return {group: factor for group, factor in factors.items() if group in summed and abs(factor - 1) > ROUNDING}


def _folded(
    names: Mapping[str, str],
    full: tuple[Architecture, Mapping[str, int], Mapping[str, float]],
    narrow: tuple[Architecture, Mapping[str, int], Mapping[str, float]],
) -> dict[str, float]:
    """The factor of each parameter's product, or end of a block, in a subnet relative to the network.

    ``full``, ``narrow``: a network, lengths and a scale.
    """
    (whole, *at), (network, *here) = full, narrow
    ratios = {new: whole.weight_factor(old, *at) / network.weight_factor(new, *here) for new, old in names.items()}
    return {name: ratio for name, ratio in ratios.items() if abs(ratio - 1) > ROUNDING}


def _refusal(full: Architecture, narrow: Narrow, problem: str) -> ConfigError:
    settings = ", ".join(f"{name} = {value!r}" for name, value in narrow.settings.items())
    return ConfigError(
        f"{full.name}: a network of this class with {settings} {problem} than the subnet, for what its constructor "
        f"makes depends on more than that. Deal out other groups (method.partition)."
    )


def _absent(blocks: Blocks, held: Mapping[str, Positions]) -> dict[str, list[int]]:
    """The numbers of the blocks that a subnet does not have, by the list that they are in."""
    absent: dict[str, list[int]] = {}
    for group, units in held.items():
        for number, block in enumerate(blocks.get(group, ())):
            if number not in units:
                path, _, place = block.path.rpartition(".")
                absent.setdefault(path, []).append(int(place))
    return absent


def _renumbered(name: str, absent: Mapping[str, Iterable[int]]) -> str | None:
    """A parameter's name in a network without some blocks; None if it is part of one of these."""
    parts = name.split(".")
    renumbered = list(parts)
    for depth in range(1, len(parts)):
        if gone := absent.get(".".join(parts[:depth])):
            place = int(parts[depth])
            if place in gone:
                return None
            renumbered[depth] = str(place - sum(number < place for number in gone))
    return ".".join(renumbered)


def _groups(full: Architecture, names: Mapping[str, str]) -> dict[str, str]:
    """The group of the full network whose units each unit group has: where blocks move up, their widths do.

    The name of a layer's width, as one of a list of widths, does not change with its place.
    """
    sources: dict[str, set[str]] = {}
    for new, old in names.items():
        here, there = (_named(full.parameters[name]) for name in (new, old))
        for group, source in zip(here, there):
            sources.setdefault(group, set()).add(source)
    for group, several in sources.items():
        if len(several) > 1:
            raise ConfigError(
                f"{full.name}: without some of its blocks, {group} would be {' and '.join(sorted(several))} at once. "
                f"Deal out other groups (method.partition)."
            )
    return {group: min(sources.get(group, {group})) for group in full.groups}


def _named(parameter: Parameter) -> list[str]:
    factors = (factor for axis in parameter.pattern.axes for factor in axis.factors)
    return [factor.name for factor in factors if factor.name is not None and factor.unit is None]
