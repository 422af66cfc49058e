"""Computes the factors that multiply the contributions of dealt units in the full network when a run begins."""

from __future__ import annotations

from istmpi.config import Run
from istmpi.methods import spec_of
from istmpi.models.architecture import Architecture


def first_scale(run: Run, network: Architecture, ranks: int) -> dict[str, float]:
    """Return the share of each dealt group that a first subnet has; ``run`` has the first method.

    The share stays with the weights from then on, whatever the later methods and numbers of ranks.
    """
    spec = spec_of(run.method.name)
    dealt = [group for group in spec.groups(run, network) if group in network.summed]
    least = spec.least(run, network)
    # Each rank has that share of a group's units: more than a P-th where several hold the same.
    return {group: max(1 / ranks, min(least.get(group, 0) / network.lengths[group], 1)) for group in dealt}
