"""Finds factors of the full network's sums that no weight can hold, so that a plain class cannot
load them."""

from collections.abc import Mapping

from istmpi.network.architecture import Architecture
from istmpi.network.joined import changes


def find_unheld_factor(network: Architecture, scale: Mapping[str, float]) -> str:
    """Return a factor of the full network that no weight can hold, in words; empty if weights hold
    all. ``scale``: as for `Architecture.factor`."""
    # The first problem of a kind stands for all.
    for call in network.scaled_calls(scale):
        return (
            f"{call[1]} in {call[0] or 'its forward'} has a factor in the full network that no "
            "weight can hold"
        )
    for path in network.table.elsewhere:
        if changes(network.weight_factor(f"{path}.weight", scale)):
            return (
                f"{path}.weight has a factor in the full network, and its class also uses this "
                f"weight outside of {path}"
            )
    return ""
