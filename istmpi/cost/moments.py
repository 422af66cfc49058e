"""Counts the moments of subnets side by side, which ranks add up with the outputs of a pass."""

from collections.abc import Mapping

from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.cost.one_round import draw_route
from istmpi.engine.axes import narrow
from istmpi.engine.partition import Partition
from istmpi.network.architecture import Architecture


def count_moments(run: Run, architecture: Architecture, ranks: int) -> int | None:
    """Return the number of values in the moments of all subnets' batch normalisations
    (`istmpi.evaluation.moments`); None if deals decide which of them a subnet has."""
    layers = architecture.batch_norms
    spec = find_method_spec(run.method.name)
    if not layers or ranks == 1 or not spec.groups(run, architecture):
        return 0
    if architecture.blocks and spec.redeal(run):
        return None
    deal = draw_route(run, architecture, ranks).deal(0)
    assert isinstance(deal, Partition), "units are dealt out"
    units = 0
    for units_of_layers in count_units_by_subnet(architecture, deal):
        units += sum(units_of_layers.values())
    return 2 * units


def count_units_by_subnet(architecture: Architecture, deal: Partition) -> list[dict[str, int]]:
    """Return the units of each batch normalisation in each subnet of a deal, in the subnets'
    order."""
    by_subnet = []
    for number in range(deal.ranks):
        lengths = narrow(deal.lengths, architecture.parameters, deal.held(number))
        by_subnet.append(_count_units(architecture, lengths))
    return by_subnet


def _count_units(architecture: Architecture, lengths: Mapping[str, int]) -> dict[str, int]:
    """Return the units of each batch normalisation in a subnet of some ``lengths``; those of a
    layer that the subnet lacks are 0, or are left out."""
    names = architecture.batch_norms
    if architecture.stages:
        return {name: lengths[name] for name in names}
    weights = {name: architecture.parameters.get(f"{name}.weight") for name in names}
    units = {}
    for name, weight in weights.items():
        if weight is None:
            # Only the module tells the axis of a layer without weights.
            built = architecture.without_values(None, lengths)
            layers = architecture.batch_norm_layers(built)
            return {layer: norm.num_features for layer, norm in layers.items()}
        units[name] = int(weight.size(lengths))
    return units
