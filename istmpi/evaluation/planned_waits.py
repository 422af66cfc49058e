"""Counts the waits of a run's evaluations, and of the temperature at its saves, before the run, as
`istmpi.comm.ledger` counts them. Without torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from istmpi.comm import ring
from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.cost.evaluation import EvaluationPlan
from istmpi.cost.waits import UnknownWaits, Waits, count_flush_waits, divide_by_method
from istmpi.data.dataset import Dataset
from istmpi.data.graph.split import GraphSplit
from istmpi.engine.buckets import divide_into_buckets
from istmpi.evaluation.further import has_area
from istmpi.evaluation.halvings import count_sums_of_temperature
from istmpi.evaluation.planned_bytes import list_evaluated, list_lacking
from istmpi.evaluation.planning import (
    choose_form,
    choose_interval,
    divide,
    has_known_sizes,
    knows_outputs,
    may_keep_logits,
    plan_evaluation,
    scores_together,
)
from istmpi.evaluation.sample import count_sampled, count_scored
from istmpi.network.architecture import Architecture
from istmpi.tasks import MultiLabel, OwnTask

_CALLS_OF_MOMENTS = 3
"""The calls of a normalisation in a calibration by all ranks: which layer comes next, its means,
its variances. Once more, ranks learn that no layer is left."""
_CALLS_OF_OWN_SUMS = 2
"""The calls that bring a user's sums together, and agree that all ranks could read them."""
_CALLS_OF_AREA = 2
"""The calls that bring the margins of an area under a curve together: their numbers come first."""


def plan_evaluation_waits(run: Run, architecture: Architecture, data: Dataset, ranks: int) -> Waits:
    """Return the waits of a run's evaluations. Raises UnknownWaits."""
    if ranks == 1:
        return Waits(calls=0, least=0)
    plan = plan_evaluation(run, architecture, data, ranks, ranks)
    _require_known(run, data, plan)
    rounds = list_evaluated(run, choose_interval(run, architecture, data, ranks))
    form = choose_form(run)
    flushes = 0
    # Outputs that are added up need no weights of other ranks.
    if form != "sum":
        flushes = count_flush_waits(run, architecture, ranks, rounds)
    area = _count_area(data, plan)
    if form == "merged":
        calls = flushes + area
        for phase in divide_by_method(run, rounds):
            once = count_merged(phase.run, architecture, data, ranks, plan)
            calls += len(phase.rounds) * once
            if phase.is_handed_over:
                calls += _count_score(run, architecture, data, plan, present=())
        return Waits(calls=calls, least=calls)
    _require_outputs(run, architecture, data, plan)
    scored = count_scored(run.evaluate, data, len(data.test))
    side_by_side = count_subnets(run, architecture, ranks, _list_batches(run, data, scored))
    if form != "best":
        calls = flushes + len(rounds) * side_by_side
        return Waits(calls=calls, least=calls)
    if scores_together(run, architecture, data, ranks, plan):
        calls = flushes + len(rounds) * _count_both(run, architecture, data, ranks, plan)
        return Waits(calls=calls + area, least=calls)
    calls = flushes + len(rounds) * _count_choice(run, architecture, data, ranks, plan)
    # The full network stays loaded if it wins.
    merged = len(rounds) * count_calls_of_sums(data, plan) + area
    subnets = len(rounds) * side_by_side
    return Waits(calls=calls + max(merged, subnets), least=calls + min(merged, subnets))


def _require_known(run: Run, data: Dataset, plan: EvaluationPlan) -> None:
    not_merged = choose_form(run) != "merged"
    is_divided = plan.by_units or bool(plan.sharded)
    reasons = {
        "a program has the loop": data.network is not None,
        "the size of images changes": not has_known_sizes(run, plan),
        "a validation split": run.watches_validation,
        "train.max_minutes": run.train.max_minutes,
        "model.scale = fitted": run.model.scale == "fitted",
        "columns of ranks differ": bool(data.columns),
        "a divided graph": is_divided and isinstance(data.train, GraphSplit),
        "divided labels": is_divided and issubclass(data.scoring, MultiLabel),
        "replica groups": run.train.group_size != 1,
        "two methods, whose scores choose the form": run.method.finish and not_merged,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnknownWaits(reason)


def _require_outputs(
    run: Run, architecture: Architecture, data: Dataset, plan: EvaluationPlan
) -> None:
    if not knows_outputs(run, architecture, data, plan):
        raise UnknownWaits("outputs of subnets side by side")


def count_merged(
    run: Run, architecture: Architecture, data: Dataset, ranks: int, plan: EvaluationPlan
) -> int:
    """Return the waits of an evaluation of the full network whose owners have the newest values.
    Raises UnknownWaits."""
    present = find_method_spec(run.method.name).on_all_ranks(run, architecture, ranks)
    return _count_score(run, architecture, data, plan, present)


def _count_score(
    run: Run,
    architecture: Architecture,
    data: Dataset,
    plan: EvaluationPlan,
    present: Collection[str],
) -> int:
    """Return the calls that load the full network but for weights that are ``present`` on every
    rank, calibrate it, and score it."""
    passes = len(_list_batches(run, data, count_scored(run.evaluate, data, len(data.test))))
    if architecture.batch_norms:
        passes += 1
    calls = _count_load(architecture, plan, present) + count_calls_of_moments(architecture, plan)
    calls += passes * _count_calls_of_leaves(architecture, plan)
    return calls + count_calls_of_sums(data, plan)


def _count_calls_of_leaves(architecture: Architecture, plan: EvaluationPlan) -> int:
    """Return the calls of a pass, in which ranks join the outputs of leaves that are divided."""
    operators = architecture.operators
    return sum(operator.calls for operator in operators if operator.parameter in plan.sharded)


def _count_load(architecture: Architecture, plan: EvaluationPlan, present: Collection[str]) -> int:
    """Return the calls that load the full network but for weights that are ``present`` on every
    rank."""
    sizes = {}
    for name, parameter in architecture.parameters.items():
        if name not in present and name not in plan.sharded:
            nbytes = parameter.size(architecture.lengths) * parameter.itemsize
            sizes[name] = (parameter.dtype, nbytes)
    return len([*divide_into_buckets(sizes)])


def count_calls_of_moments(architecture: Architecture, plan: EvaluationPlan) -> int:
    """Return the calls that calibrate the full network."""
    if plan.on_one or plan.sharded or not architecture.batch_norms:
        return 0
    return _CALLS_OF_MOMENTS * len(architecture.batch_norms) + 1


def count_calls_of_sums(data: Dataset, plan: EvaluationPlan) -> int:
    """Return the calls that bring the sums of a score together."""
    calls = 1
    if plan.sharded:
        # Each rank has all outputs.
        calls = 0
    if issubclass(data.scoring, OwnTask):
        calls += _CALLS_OF_OWN_SUMS
    return calls


def _count_area(data: Dataset, plan: EvaluationPlan) -> int:
    """Return the calls of the details of a run's last score of the full network."""
    if plan.sharded or not has_area(data.scoring, data):
        return 0
    return _CALLS_OF_AREA


def _list_batches(run: Run, data: Dataset, examples: int) -> list[int]:
    return [len(part) for part in divide(run.evaluate.batch, data, examples)]


def count_subnets(run: Run, architecture: Architecture, ranks: int, batches: Iterable[int]) -> int:
    """Return the calls that load subnets side by side, and add up their outputs for batches of so
    many examples, one after the other."""
    calls = _count_load_of_subnets(run, architecture, ranks)
    for examples in batches:
        outputs = examples * architecture.numbers
        calls += ring.count_calls_together([outputs], architecture.itemsize, ranks)
    return calls


def _count_load_of_subnets(run: Run, architecture: Architecture, ranks: int) -> int:
    # A transfer brings each rank what it lacks of its subnet.
    return int(bool(list_lacking(run, architecture, ranks)))


def _count_choice(
    run: Run, architecture: Architecture, data: Dataset, ranks: int, plan: EvaluationPlan
) -> int:
    """Return the calls to score the full network and the subnets side by side on the sample."""
    sampled = count_sampled(run, architecture, data, ranks)
    calls = count_subnets(run, architecture, ranks, _list_batches(run, data, sampled))
    # Rank 0 tells the others both scores.
    return calls + count_merged(run, architecture, data, ranks, plan) + 1


def _count_both(
    run: Run, architecture: Architecture, data: Dataset, ranks: int, plan: EvaluationPlan
) -> int:
    """Return the calls to score both forms on the sample and on the scored examples at once."""
    sampled = count_sampled(run, architecture, data, ranks)
    scored = count_scored(run.evaluate, data, len(data.test))
    outputs = [examples * architecture.numbers for examples in (sampled, scored)]
    calls = _count_load_of_subnets(run, architecture, ranks)
    calls += ring.count_calls_together(outputs, architecture.itemsize, ranks)
    return calls + count_merged(run, architecture, data, ranks, plan)


def count_temperature_waits(
    run: Run, architecture: Architecture, data: Dataset, ranks: int, form: str
) -> int:
    """Return the waits for a classifier's temperature in a save after an evaluation in a ``form``.
    Raises UnknownWaits."""
    if not data.scoring.one_class:
        return 0
    plan = plan_evaluation(run, architecture, data, ranks, ranks)
    _require_known(run, data, plan)
    sampled = count_sampled(run, architecture, data, ranks)
    batches = _list_batches(run, data, sampled)
    if form != "merged":
        _require_outputs(run, architecture, data, plan)
        # The pass that chose the form has left its logits.
        if choose_form(run) == "best" and may_keep_logits(sampled, data.outputs):
            return 0
        return count_subnets(run, architecture, ranks, batches)
    if plan.on_one:
        return 0
    if len(architecture.table.output_names) > 1 or isinstance(data.train, GraphSplit):
        raise UnknownWaits("the number of scored outputs")
    last = [phase for phase in divide_by_method(run, [run.train.rounds]) if phase.rounds][-1]
    present = find_method_spec(last.run.method.name).on_all_ranks(run, architecture, ranks)
    calls = _count_load(architecture, plan, present)
    calls += len(batches) * _count_calls_of_leaves(architecture, plan)
    if not plan.sharded:
        calls += count_sums_of_temperature(sampled * architecture.numbers)
    return calls
