"""Says whether a run sends long messages, for which an exchange in pieces is faster."""

from istmpi.config import Run
from istmpi.cost.loads import ALLGATHER, ALLTOALLV
from istmpi.cost.run_cost import phase_costs
from istmpi.network.architecture import Architecture

LONG = 2**20
"""Bytes of a message from which on pieces are faster between hosts with slow links."""


def sends_long_messages(run: Run, architecture: Architecture, ranks: int) -> bool:
    """Return True if the messages of some exchange have at least `LONG` bytes, on average over the
    busiest rank's. The same on all ranks."""
    for cost, _ in phase_costs(run, architecture, ranks):
        for load in cost.loads:
            is_exchange = load.link in (ALLTOALLV, ALLGATHER)
            if is_exchange and load.busiest >= LONG * (ranks - 1) > 0:
                return True
    return False
