"""``istmpi train --dry-run``: what a run would hold, compute and send, without MPI, torch or training."""

from rich.console import Console

from istmpi.cli.networks import described
from istmpi.config import Run
from istmpi.cost import COSTS, cost
from istmpi.errors import ConfigError, did_you_mean
from istmpi.report import tables


def show(run: Run, ranks: int) -> None:
    """Print the plan of a run on so many ranks."""
    if run.method.name not in COSTS:
        raise ConfigError(f"method.name = {run.method.name!r} is not known{did_you_mean(run.method.name, COSTS)}")
    found = described(run, None)
    run, network = found.run, found.architecture
    alone = cost(run.override({"method.shares": None}), network, 1)
    tables.plan(Console(highlight=False), run, network, cost(run, network, ranks), alone)
