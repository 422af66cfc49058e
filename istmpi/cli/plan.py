"""``istmpi train --dry-run``: what a run would hold, compute and send, without MPI or training.

Torch is needed for a network of one's own alone, whose code is run, and for weights to begin with.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from istmpi.cli.networks import described, require_dealable
from istmpi.config import Run
from istmpi.cost import Cost, cost, phase_costs
from istmpi.exits import require_fitting
from istmpi.foreign import one_line
from istmpi.methods import METHODS
from istmpi.models.architecture import Architecture
from istmpi.report import tables


def show(run: Run, ranks: int, as_json: bool = False) -> None:
    """Print the plan of a run on so many ranks, as a table or for programs."""
    found = described(run, None)
    run, network = found.run, found.architecture
    require_fitting(run.train.exit_weights, network.exits, run.model.name)
    costs = phase_costs(run, network, ranks, found.examples, found.smaller)
    for phase, _ in costs:
        require_dealable(run, network, phase)
    run.optimizer.require_usable(sum(rounds * phase.local_steps for phase, rounds in costs))
    if run.method.shares is not None and METHODS[run.method.name].shares(run) is None:
        METHODS[run.method.name].require_changing_shares(run, network, ranks)
    alone = cost(run.override({"method.shares": None}), network, 1)
    begun = []
    if run.train.init:
        from istmpi.checkpoint.initial import fit_of

        begun = fit_of(Path(run.train.init), network).lines
    if as_json:
        figures = _figures(run, network, costs, alone) | ({"init": begun} if begun else {})
        print(json.dumps(figures, default=float))  # FLOPs are fractions
        return
    tables.plan(Console(emoji=False, highlight=False), run, network, costs, alone)
    for line in begun:
        print(one_line(line))


def _figures(run: Run, network: Architecture, phases: Sequence[tuple[Cost, int]], alone: Cost) -> dict[str, Any]:
    """The figures of the table, in bytes, weights and FLOPs; the shapes and the memory are those of the first phase."""
    first = phases[0][0]
    largest, lengths = first.largest, first.largest.part.lengths
    parameters = [
        {"name": name, "axes": str(of.pattern), "network": of.pattern.shape(network.lengths)}
        | {"largest_subnet": of.pattern.shape(lengths)}
        for name, of in network.parameters.items()
    ]
    before, told = 0, []
    for phase, rounds in phases:
        examples = rounds * phase.local_steps * phase.examples_per_step
        told.append({"method": phase.method, "rounds": rounds, "local_steps": phase.local_steps, "examples": examples})
        told[-1] |= {"round_bytes": phase.round_bytes, "sent_bytes": phase.sent_bytes(before, rounds)}
        before += rounds
    return {
        "run": run.name,
        "ranks": first.ranks,
        "dealt_out": list(first.groups),
        "parameters": parameters,
        "weights": {"largest_rank": largest.elements, "all_ranks": first.held.held_elements}
        | {"one_process": alone.largest.elements},
        "flops_per_local_step": {"largest_rank": max(part.flops.products for part in first.parts)}
        | {"all_ranks": first.flops("products"), "one_process": alone.largest.flops.products},
        "memory_of_largest_rank": asdict(largest.memory),
        "memory_of_one_process": asdict(alone.largest.memory),
        "phases": told,
    }
