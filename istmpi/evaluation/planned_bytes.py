"""Counts the bytes of a run's evaluations, and of the temperature at its saves, before the run.
Without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.config.sections import Evaluate
from istmpi.cost.evaluation import EvaluationPlan
from istmpi.cost.one_round import flushed_bytes
from istmpi.data.dataset import Dataset
from istmpi.data.graph.split import GraphSplit
from istmpi.evaluation.further import count_further, has_area
from istmpi.evaluation.planning import (
    choose_form,
    choose_interval,
    count_numbers,
    count_output_bytes,
    has_known_sizes,
    knows_outputs,
    may_keep_logits,
    plan_evaluation,
    scores_together,
)
from istmpi.evaluation.sample import count_sampled, count_scored
from istmpi.network.architecture import Architecture


@dataclass(frozen=True)
class Planned:
    """The evaluations of a run."""

    every: int
    """Rounds between evaluations."""
    count: int
    sent: int | None
    """The most bytes that all ranks send in them; None if these are not known before the run."""
    least: int | None
    """The fewest bytes, which differ from the most if scores decide the form of the network."""


def plan_evaluations(run: Run, architecture: Architecture, data: Dataset, ranks: int) -> Planned:
    """Return the evaluations of a run, and the bytes that they send for this run's seed.

    The bytes are not known for other sizes of images, for local data that a sharded layer's rows
    travel to, and where `istmpi.cost.one_round.flushed_bytes` does not know them; for subnets side
    by side neither with several outputs, sharded layers, graphs or a validation split.
    """
    every = choose_interval(run, architecture, data, ranks)
    rounds = list_evaluated(run, every)
    unknown = Planned(every=every, count=len(rounds), sent=None, least=None)
    plan = plan_evaluation(run, architecture, data, ranks, ranks)
    if not has_known_sizes(run, plan):
        return unknown
    form = choose_form(run)
    flushed = _count_flushed(run, architecture, ranks, rounds)
    if flushed is None:
        return unknown
    details = _count_details(run.evaluate, data, ranks, plan)
    if form == "merged":
        sent = flushed + len(rounds) * plan.sent + details
        return replace(unknown, sent=sent, least=sent)
    if not knows_outputs(run, architecture, data, plan):
        return unknown
    blocks = len(rounds) * _count_side_by_side(run, architecture, data, ranks)
    if data.labels_on is not None:
        blocks += details
    if form != "best":
        return replace(unknown, sent=flushed + blocks, least=flushed + blocks)
    assert plan.sums is not None, "there are no sharded layers"
    if scores_together(run, architecture, data, ranks, plan):
        both = flushed + len(rounds) * _count_both(run, architecture, data, ranks, plan)
        return _add_details(
            replace(unknown, sent=both, least=both), run.evaluate, data, ranks, plan
        )
    # The full network stays loaded if it wins.
    merged = len(rounds) * plan.sums + details
    both = flushed + len(rounds) * _count_choice(run, architecture, data, ranks, plan)
    return replace(unknown, sent=both + max(merged, blocks), least=both + min(merged, blocks))


def list_evaluated(run: Run, every: int) -> list[int]:
    """Return the rounds, from 1, after which a run is evaluated; ``every``: rounds between
    evaluations."""
    last = run.train.rounds
    return [*range(every, last, every), last]


def _count_flushed(
    run: Run, architecture: Architecture, ranks: int, rounds: list[int]
) -> int | None:
    # Outputs that are added up need no weights of other ranks.
    if choose_form(run) == "sum":
        return 0
    return flushed_bytes(run, architecture, ranks, rounds)


def _add_details(
    planned: Planned, evaluate: Evaluate, data: Dataset, ranks: int, plan: EvaluationPlan
) -> Planned:
    """Return evaluations whose last one has details, in which both forms are scored at once."""
    assert planned.sent is not None, "bytes are known"
    numbers, area = _split_details(evaluate, data, ranks, plan)
    least = planned.sent + numbers
    # Rank 0 alone has the full network's outputs; all ranks have those of subnets.
    return replace(planned, sent=least + area, least=least)


def _count_side_by_side(run: Run, architecture: Architecture, data: Dataset, ranks: int) -> int:
    """Return the bytes that all ranks send to score subnets side by side."""
    passed = _count_passed(
        run, architecture, ranks, count_scored(run.evaluate, data, len(data.test))
    )
    if data.labels_on is None:
        return passed
    # One rank has the labels, and tells the others its sums.
    return passed + ranks * (ranks - 1) * 8 * count_numbers(run.evaluate, architecture, data)


def _count_choice(
    run: Run, architecture: Architecture, data: Dataset, ranks: int, plan: EvaluationPlan
) -> int:
    """Return the bytes to score the full network and the subnets side by side on the sample."""
    sampled = count_sampled(run, architecture, data, ranks)
    # Rank 0 tells the others both scores.
    scores = (ranks - 1) * 2 * 8
    return _count_passed(run, architecture, ranks, sampled) + plan.sent + scores


def _count_both(
    run: Run, architecture: Architecture, data: Dataset, ranks: int, plan: EvaluationPlan
) -> int:
    """Return the bytes to score both forms on the sample and on the scored examples at once."""
    scored = count_scored(run.evaluate, data, len(data.test))
    sampled = count_sampled(run, architecture, data, ranks)
    assert plan.sums is not None, "rank 0 adds up alone"
    # Rank 0 tells the others its sums of both, and the subnets' score.
    sums = plan.sums + (ranks - 1) * 8
    return _count_passed(run, architecture, ranks, sampled + scored) + plan.sent + sums


def _count_passed(run: Run, architecture: Architecture, ranks: int, examples: int) -> int:
    """Return the bytes that all ranks send to load subnets side by side, and to add up their
    outputs for so many examples."""
    # Ranks add up outputs round a ring.
    sent = 2 * (ranks - 1) * count_output_bytes(architecture, examples)
    for name in list_lacking(run, architecture, ranks):
        parameter = architecture.parameters[name]
        sent += (ranks - 1) * parameter.size(architecture.lengths) * parameter.itemsize
    return sent


def list_lacking(run: Run, architecture: Architecture, ranks: int) -> list[str]:
    """Return the names of the parameters that owners send to ranks that score their subnets: what
    is not dealt out, and what no method keeps on every rank."""
    spec = find_method_spec(run.method.name)
    # Each rank has the values of its subnet.
    if spec.sums_outputs:
        return []
    present = spec.on_all_ranks(run, architecture, ranks)
    groups = spec.groups(run, architecture)
    lacking = []
    for name, parameter in architecture.parameters.items():
        if name not in present and not parameter.pattern.dealt(groups):
            lacking.append(name)
    return lacking


def count_calibration_bytes(
    run: Run, architecture: Architecture, data: Dataset, ranks: int
) -> int | None:
    """Return the bytes that a save after an evaluation sends for a classifier's temperature. None
    if they are not known before the run."""
    form = choose_form(run)
    if ranks == 1 or not data.scoring.one_class:
        return 0
    # Only one rank has labels, and adds up slopes with the others.
    if data.labels_on is not None:
        return None
    plan = plan_evaluation(run, architecture, data, ranks, ranks)
    if form in ("merged", "best") and not plan.on_one:
        return None
    if form == "merged":
        return 0
    if not knows_outputs(run, architecture, data, plan):
        return None
    sampled = count_sampled(run, architecture, data, ranks)
    if form != "best":
        return _count_passed(run, architecture, ranks, sampled)
    # The pass that chose the form has left its logits.
    return 0 if may_keep_logits(sampled, data.outputs) else None


def _count_details(evaluate: Evaluate, data: Dataset, ranks: int, plan: EvaluationPlan) -> int:
    """Return the bytes that ranks send for the details of a run's last scores."""
    return sum(_split_details(evaluate, data, ranks, plan))


def _split_details(
    evaluate: Evaluate, data: Dataset, ranks: int, plan: EvaluationPlan
) -> tuple[int, int]:
    """Return the bytes of the sums of a run's last details, and those of an area under a curve."""
    if plan.sharded:
        return 0, 0
    task = data.scoring
    with_details = count_further(task, data, evaluate, details=True)
    numbers = with_details - count_further(task, data, evaluate, details=False)
    # Rank 0 alone sends its sums, or each rank its own.
    if not plan.on_one:
        numbers *= ranks
    area = 0
    if has_area(task, data):
        rows = count_scored(evaluate, data, len(data.test))
        if isinstance(data.test, GraphSplit):
            rows = len(data.test.graph)
        # All ranks' numbers of rows come first.
        area = ranks * ranks + 2 * rows
    return (ranks - 1) * 8 * numbers, (ranks - 1) * 8 * area
