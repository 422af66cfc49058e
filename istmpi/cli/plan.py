"""``istmpi train --dry-run``: what a run would hold, compute and send, without MPI, torch or training."""

from rich.console import Console

from istmpi.cli.networks import described
from istmpi.config import Run
from istmpi.cost import COSTS, cost
from istmpi.errors import ConfigError, did_you_mean
from istmpi.report import tables


def show(run: Run, ranks: int) -> None:
    """Print the plan of a run on so many ranks."""
    phases = run.phases()
    for name, _ in phases:
        if name not in COSTS:
            setting = "method.name" if name == run.method.name else "method.finish"
            raise ConfigError(f"{setting} = {name!r} is not known{did_you_mean(name, COSTS)}")
    found = described(run, None)
    run, network = found.run, found.architecture
    alone = cost(run.override({"method.shares": None}), network, 1)
    costs = [(cost(run, network, ranks, name, examples=found.examples), rounds) for name, rounds in phases]
    tables.plan(Console(highlight=False), run, network, costs, alone)
