"""A subnet as a network of its own: of the same class, narrower, perhaps with fewer blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from istmpi.engine.axes import Parameter, Pattern, Positions, narrowed
from istmpi.errors import ConfigError
from istmpi.models.architecture import Architecture
from istmpi.models.table import Blocks
from istmpi.models.tables import Facts, table_of

if TYPE_CHECKING:
    import torch

EXAMPLES = 3
"""On which a subnet and the network that is made of it are compared."""


@dataclass(frozen=True)
class Narrow:
    """The network that has a subnet's units and nothing else, and where in the whole network it has them from."""

    network: Architecture
    settings: Mapping[str, Any]
    """Of the model, those that are others than the whole network's."""
    names: Mapping[str, str]
    """Of every parameter its name in the whole network: blocks are numbered anew."""
    scale: Mapping[str, float]
    """What it multiplies the contributions of each unit group by to compute what the subnet computes in training."""
    groups: Mapping[str, str]
    """Of every unit group that of the whole network the units of which it has."""
    folded: Mapping[str, float] = field(default_factory=dict)
    """What some parameters have to be multiplied by, for ``scale`` cannot say it: a group of one unit is none."""


def narrow_module(whole: Architecture, held: Mapping[str, Positions], scale: Mapping[str, float]) -> Narrow:
    """The network of a plain module's subnet that holds these units; its code is run.

    ``scale`` is what the subnet is built with. Raises ConfigError for a subnet that the class cannot be.
    """
    from istmpi.models.inspection import inspect

    own, absent = whole.code, _absent(whole.blocks, held)
    names = {new: name for name in whole.parameters if (new := _renumbered(name, absent)) is not None}
    groups = _groups(whole, names)
    lengths = narrowed(whole.lengths, whole.parameters, held)
    widths = {group: own.widths[group].length - len(whole.blocks[group]) + lengths[group] for group in whole.blocks}
    widths |= {group: lengths[of] for group, of in groups.items() if group not in whole.blocks}
    settings = own.settings_at(widths)
    narrower = replace(own, settings=settings)
    facts = Facts(narrower.inputs, narrower.outputs)
    table = table_of(whole.name, facts, settings) or replace(inspect(narrower), source=whole.table.source)
    dtype = next(of.dtype for of in whole.parameters.values())
    network = Architecture(whole.name, table, dtype, narrower)
    changed = {name: value for name, value in settings.items() if value != own.settings[name]}
    factors = scale_of(whole, network, lengths, scale, groups)
    folded = _folded(names, (whole, lengths, scale), (network, network.lengths, factors))
    return Narrow(network, changed, names, factors, groups, folded)


def scale_of(
    whole: Architecture,
    network: Architecture,
    lengths: Mapping[str, int],
    scale: Mapping[str, float],
    groups: Mapping[str, str],
) -> dict[str, float]:
    """What a network multiplies contributions by that is a subnet, of these lengths, of a whole one; 1 is left out."""
    summed = {*network.blocks, *chain.from_iterable(network.sums.values())}
    found = {}
    for group in network.groups:
        factor = whole.contribution(groups.get(group, group), lengths, scale)
        if group in summed and abs(factor - 1) > 1e-12:
            found[group] = factor
    return found


def require_same_outputs(
    whole: Architecture,
    held: Mapping[str, Positions],
    scale: Mapping[str, float],
    narrow: Narrow,
    parts: Mapping[str, torch.Tensor],
) -> None:
    """Refuse, with a ConfigError, a network that does not compute what the subnet computes in training.

    ``parts``: the network's parameters by its own names. A class may depend on where in it a block lies, or on how
    many there are.
    """
    import torch

    from istmpi.models.trials import alike

    network = narrow.network
    shapes = {name: of.pattern.shape(network.lengths) for name, of in network.parameters.items()}
    if shapes != {name: tuple(part.shape) for name, part in parts.items()}:
        raise _refusal(whole, narrow, "has other parameters")
    found = []
    lengths = narrowed(whole.lengths, whole.parameters, held)
    for one, its, factors in ((whole, lengths, scale), (network, network.lengths, narrow.scale)):
        if one is whole:
            values = {narrow.names[name]: part for name, part in parts.items()}
        else:
            values = {name: part * narrow.folded.get(name, 1.0) for name, part in parts.items()}
        built = one.build(its, factors).double().eval()
        for name, parameter in built.named_parameters():
            parameter.data = values[name].double()
        found.append(one.code.forward(built, *one.code.examples(EXAMPLES, torch.float64)))
    if not alike(*found):
        raise _refusal(whole, narrow, "computes something else")


def _folded(
    names: Mapping[str, str],
    whole: tuple[Architecture, Mapping[str, int], Mapping[str, float]],
    narrow: tuple[Architecture, Mapping[str, int], Mapping[str, float]],
) -> dict[str, float]:
    """By how much more each parameter's product, or end of a block, is multiplied in a subnet than in the network.

    ``whole``, ``narrow``: a network, lengths and a scale.
    """

    def factor(name: str, network: Architecture, lengths: Mapping[str, int], scale: Mapping[str, float]) -> float:
        module, _, kind = name.rpartition(".")
        product = network.factor(module, lengths, scale) if kind == "weight" else 1.0
        return product * network.end_factor(module, lengths, scale)

    ratios = {new: factor(old, *whole) / factor(new, *narrow) for new, old in names.items()}
    return {name: ratio for name, ratio in ratios.items() if abs(ratio - 1) > 1e-12}


def _refusal(whole: Architecture, narrow: Narrow, problem: str) -> ConfigError:
    settings = ", ".join(f"{name} = {value!r}" for name, value in narrow.settings.items())
    return ConfigError(
        f"{whole.name}: a network of this class with {settings} {problem} than the subnet, for what its constructor "
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
    """A parameter's name in a network without some blocks; None where it is of one of these."""
    parts = name.split(".")
    renumbered = list(parts)
    for depth in range(1, len(parts)):
        if gone := absent.get(".".join(parts[:depth])):
            place = int(parts[depth])
            if place in gone:
                return None
            renumbered[depth] = str(place - sum(number < place for number in gone))
    return ".".join(renumbered)


def _groups(whole: Architecture, names: Mapping[str, str]) -> dict[str, str]:
    """Of every group that of the whole network whose units it has: where blocks move up, their widths do.

    That a layer's width may have a name of its own, as one of a list of widths, does not change with its place.
    """
    found: dict[str, set[str]] = {}
    for new, old in names.items():
        here, there = (_named(whole.parameters[name]) for name in (new, old))
        for group, of in zip(here, there):
            found.setdefault(group, set()).add(of)
    for group, several in found.items():
        if len(several) > 1:
            raise ConfigError(
                f"{whole.name}: without some of its blocks, {group} would be {' and '.join(sorted(several))} at once. "
                f"Deal out other groups (method.partition)."
            )
    return {group: min(found.get(group, {group})) for group in whole.groups}


def _named(parameter: Parameter) -> list[str]:
    pattern: Pattern = parameter.pattern
    return [of.name for axis in pattern.axes for of in axis.factors if of.name is not None and of.unit is None]
