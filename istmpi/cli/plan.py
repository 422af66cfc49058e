"""``istmpi train --dry-run``: what a run would hold, compute and send, without MPI or training.

Torch is needed for a network of one's own alone, whose code is run.
"""

from rich.console import Console

from istmpi.cli.networks import described, require_dealable
from istmpi.config import Run
from istmpi.cost import cost, phase_costs
from istmpi.exits import require_fitting
from istmpi.report import tables


def show(run: Run, ranks: int) -> None:
    """Print the plan of a run on so many ranks."""
    found = described(run, None)
    run, network = found.run, found.architecture
    require_fitting(run.train.exit_weights, network.exits, run.model.name)
    costs = phase_costs(run, network, ranks, found.examples, found.smaller)
    for phase, _ in costs:
        require_dealable(run, network, phase)
    run.optimizer.require_usable(sum(rounds * phase.local_steps for phase, rounds in costs))
    alone = cost(run.override({"method.shares": None}), network, 1)
    tables.plan(Console(highlight=False), run, network, costs, alone)
