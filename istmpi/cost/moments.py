"""Counts the bytes that bring the moments of subnets side by side together for a save."""

from collections.abc import Mapping

from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.cost.one_round import draw_route
from istmpi.engine.axes import narrow
from istmpi.engine.partition import Partition
from istmpi.network.architecture import Architecture

_NUMBER = 8
"""Bytes of a number of units."""


def moments_bytes(run: Run, architecture: Architecture, ranks: int) -> int | None:
    """Return the bytes that all ranks send each other for the moments of their subnets' batch
    normalisations (`istmpi.evaluation.moments`); None if deals decide which of them a subnet has.
    """
    layers = architecture.batch_norms
    spec = find_method_spec(run.method.name)
    if not layers or ranks == 1 or not spec.groups(run, architecture):
        return 0
    if architecture.blocks and spec.redeal(run):
        return None
    deal = draw_route(run, architecture, ranks).deal(0)
    assert isinstance(deal, Partition), "units are dealt out"
    units = 0
    for rank in range(ranks):
        lengths = narrow(deal.lengths, architecture.parameters, deal.held(rank))
        units += _count_units(architecture, lengths)
    numbers = ranks * len(layers) * _NUMBER
    return (ranks - 1) * (numbers + 2 * units * architecture.itemsize)


def _count_units(architecture: Architecture, lengths: Mapping[str, int]) -> int:
    """Return the units of all batch normalisations in a subnet of some ``lengths``."""
    if architecture.stages:
        return sum(lengths[name] for name in architecture.batch_norms)
    units = 0
    for name in architecture.batch_norms:
        weight = architecture.parameters.get(f"{name}.weight")
        if weight is None:
            # Only the module tells the axis of a layer without weights.
            built = architecture.without_values(None, lengths)
            layers = architecture.batch_norm_layers(built).values()
            return sum(layer.num_features for layer in layers)
        units += int(weight.size(lengths))
    return units
