"""``istmpi train --dry-run``: what a run would hold, compute and send, without MPI, torch or training."""

from rich.console import Console
from rich.table import Table

from istmpi.config import Run
from istmpi.cost import cost
from istmpi.data.sources import open_dataset
from istmpi.models import architecture
from istmpi.optimizers import recipe
from istmpi.report.units import number, size


def show(run: Run, ranks: int) -> None:
    """Print the plan of a run on so many ranks."""
    run = run.with_implied()
    data = open_dataset(run.data.source, 0)
    network = architecture(data.features, data.outputs, data.task, run.model)
    slots = len(recipe(run.optimizer).slots)
    plan = cost(run, network, ranks, slots)
    alone = cost(run.override({"method.name": "local-sgd"}), network, 1, slots)
    largest = plan.largest
    console = Console(highlight=False)
    dealt = ", ".join(plan.groups) or "nothing"
    console.print(f"[bold]{run.name}[/]: {run.method.name} on {ranks} ranks, {dealt} dealt out")
    shapes = Table("parameter", "axes", "network", "largest subnet", box=None, pad_edge=False)
    for name, parameter in network.parameters.items():
        pattern = parameter.pattern
        whole, part = (" x ".join(map(str, pattern.shape(lengths))) for lengths in (network.lengths, largest.lengths))
        shapes.add_row(name, str(pattern), whole, part)
    console.print(shapes)
    costs = Table("", "each rank", "all ranks", "one process", box=None, pad_edge=False)
    elements = [rank.trained_elements for rank in plan.ranks]
    flops = [rank.flops for rank in plan.ranks]
    one = alone.largest
    costs.add_row("weights trained", number(max(elements)), number(sum(elements)), number(one.trained_elements))
    costs.add_row("FLOPs a local step", number(max(flops)), number(sum(flops)), number(one.flops))
    costs.add_row("bytes sent a round", size(plan.round_bytes / ranks), size(plan.round_bytes), size(0))
    owned = [rank.owned_bytes for rank in plan.ranks]
    trained = [rank.trained_bytes for rank in plan.ranks]
    costs.add_row("memory: owned rows", size(max(owned)), size(sum(owned)), "")
    costs.add_row("memory: network, gradients", size(max(trained)), size(sum(trained)), size(one.trained_bytes))
    console.print(costs)
    steps = run.train.rounds * run.method.local_steps
    console.print(
        f"{run.train.rounds} rounds of {run.method.local_steps} local steps: {number(steps * ranks * run.train.batch)} "
        f"examples, {size(plan.round_bytes * run.train.rounds)} sent by all ranks"
    )
