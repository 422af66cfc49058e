"""``istmpi train --dry-run``: what a run would hold, compute and send, without MPI or training."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from istmpi.cli.networks import describe_run
from istmpi.cli.output import print_json, wide_console
from istmpi.comm.launcher import on_this_host, rank_variable, read_launcher
from istmpi.config import Run, Train
from istmpi.config.method_settings import EVEN_DEAL
from istmpi.cost import Cost, cost, run_bytes
from istmpi.cost.counts import Amount
from istmpi.cost.holdings import Part
from istmpi.cost.members import GroupCost, count_group
from istmpi.data.callable.source import is_function
from istmpi.data.dataset import Dataset
from istmpi.foreign import one_line
from istmpi.methods.group_limits import require_size
from istmpi.network.architecture import Architecture
from istmpi.report import tables


def show(
    run: Run, ranks: int | None = None, cluster: str | None = None, as_json: bool = False
) -> None:
    """Print the plan of a run on ``ranks`` ranks, by default those of the job or 4, with its
    seconds on a ``cluster``; or print it as JSON."""
    if ranks is None:
        run, ranks = _find_ranks(run)
    if cluster is not None:
        require_size(run.train.group_size)
    planned = describe_run(run, None, ranks=ranks)
    run = planned.run
    network = planned.architecture
    costs = planned.require_trainable(run, ranks)
    alone = cost(run.override(EVEN_DEAL), network, 1)
    initial = _describe_initial(run.train, network)
    figures = _figures(run.name, network, costs, alone)
    figures["sent_bytes"] = run_bytes(run, network, ranks, planned.smaller)
    if run.train.group_size > 1:
        figures["group"] = asdict(_count_group(run, network, planned.data, costs[0][0]))
    if planned.data is not None:
        figures |= _plan_around_rounds(run, network, planned.data, ranks, cluster)
    if as_json:
        if initial:
            figures["init"] = initial
        print_json(figures)
        return
    tables.plan(wide_console(), run, network, figures)
    for line in initial:
        print(one_line(line))


def _find_ranks(run: Run) -> tuple[Run, int]:
    """Return the run with the size of its replica groups, and the number of ranks in this job."""
    if not rank_variable():
        return run, 4
    if not run.train.group_size:
        run = run.override({"train.group_size": on_this_host()[1]})
    return run, max(read_launcher()[1] // run.train.group_size, 1)


def _count_group(run: Run, network: Architecture, data: Dataset | None, first: Cost) -> GroupCost:
    """Return what replica groups add to a run; ``first``: the cost of its first phase."""
    evaluating = None
    passed: Amount = 0
    if data is not None:
        from istmpi.evaluation.planning import Evaluations

        evaluations = Evaluations.in_training(run, network, data, first.ranks)
        evaluating = evaluations.count_groups()
        passed = evaluations.count_pass_bytes()
    return count_group(
        run,
        network,
        first.ranks,
        run.train.group_size,
        first.local_steps,
        evaluating=evaluating,
        passed=passed,
    )


def _plan_around_rounds(
    run: Run, network: Architecture, data: Dataset, ranks: int, cluster: str | None
) -> dict[str, Any]:
    """Return the figures of evaluations and saves, and with a cluster the seconds of all."""
    from istmpi.evaluation.planned_bytes import plan_evaluations
    from istmpi.evaluation.planning import Evaluations
    from istmpi.training.saves import plan_saves
    from istmpi.training.waits import plan_waits

    # As a training does: the size of the calibration sample depends on the interval.
    every = Evaluations.in_training(run, network, data, ranks).every
    run = run.override({"evaluate.every": every})
    evaluations = Evaluations.in_training(run, network, data, ranks)
    figures: dict[str, Any] = {
        "evaluations": asdict(plan_evaluations(evaluations)),
        "saving": asdict(plan_saves(evaluations)),
        "waits": asdict(plan_waits(evaluations)),
    }
    if cluster is not None:
        from istmpi.cluster.figures import find_cluster
        from istmpi.cluster.run_time import predict_run

        measured = find_cluster(cluster)
        seconds = predict_run(evaluations, measured)
        figures["seconds"] = {"cluster": measured.name, **asdict(seconds)}
    return figures


def _describe_initial(train: Train, network: Architecture) -> Sequence[str]:
    """Return lines on the initial weights from another network, if the run takes any."""
    if not train.init:
        return []
    if is_function(train.init):
        return [f"Initial weights from {train.init}."]
    from istmpi.checkpoint.initial import check_fit

    return check_fit(Path(train.init), network, train).lines


def _figures(
    name: str, network: Architecture, phases: Sequence[tuple[Cost, int]], alone: Cost
) -> dict[str, Any]:
    """Return the plan's figures, in bytes, weights and FLOPs.

    ``phases``: each phase's cost and number of rounds. ``alone``: the cost on one process. Shapes,
    FLOPs and memory are those of the first phase.
    """
    first = phases[0][0]
    largest = first.largest
    single = alone.largest
    return {
        "run": name,
        "ranks": first.ranks,
        "dealt_out": list(first.groups),
        "parameters": _parameter_figures(network, largest.part),
        "weights": {
            "largest_rank": largest.elements,
            "all_ranks": first.held.held_elements,
            "one_process": single.elements,
        },
        "flops_per_local_step": {
            "largest_rank": max(part.flops.products for part in first.parts),
            "all_ranks": first.flops("products"),
            "one_process": single.flops.products,
        },
        "memory_of_largest_rank": asdict(largest.memory),
        "memory_of_one_process": asdict(single.memory),
        "phases": _phase_figures(phases),
        "warning": tables.warn_of_widths(network, first.held),
    }


def _parameter_figures(network: Architecture, largest: Part) -> list[dict[str, Any]]:
    figures = []
    # Lengths of several ranks may be means, that is fractions; they are printed as they are.
    lengths = cast(Mapping[str, int], largest.lengths)
    for name, parameter in network.parameters.items():
        figures.append(
            {
                "name": name,
                "axes": str(parameter.pattern),
                "network": parameter.pattern.shape(network.lengths),
                "largest_subnet": parameter.pattern.shape(lengths),
            }
        )
    return figures


def _phase_figures(phases: Sequence[tuple[Cost, int]]) -> list[dict[str, Any]]:
    figures = []
    before = 0
    for phase, rounds in phases:
        figures.append(
            {
                "method": phase.method,
                "rounds": rounds,
                "local_steps": phase.local_steps,
                "examples": rounds * phase.local_steps * phase.examples_per_step,
                "round_bytes": phase.round_bytes,
                "flops_per_local_step": phase.flops("products"),
                "side": phase.side,
                # Deals differ from round to round, so the phase's first round matters.
                "sent_bytes": phase.sent_bytes(before, rounds),
            }
        )
        before += rounds
    return figures
