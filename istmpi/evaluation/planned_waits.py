"""Counts the waits of a run's evaluations, and of the temperature at its saves, before the run, as
`istmpi.comm.ledger` counts them. Without torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from istmpi.comm import ring
from istmpi.cost.evaluation_plan import EvaluationPlan
from istmpi.cost.summed_units import count_summed
from istmpi.cost.waits import UnknownWaits, Waits, count_flush_waits, divide_by_method
from istmpi.data.dataset import Dataset
from istmpi.engine.buckets import divide_into_buckets
from istmpi.evaluation.further import has_area
from istmpi.evaluation.halvings import count_sums_of_temperature
from istmpi.evaluation.planning import Evaluations
from istmpi.evaluation.sample import may_keep_logits
from istmpi.evaluation.together import keeps_logits, scores_together
from istmpi.network.architecture import Architecture
from istmpi.tasks import MultiLabel, OwnTask

_CALLS_OF_MOMENTS = 3
"""The calls of a normalisation in a calibration by all ranks: which layer comes next, its means,
its variances. Once more, ranks learn that no layer is left."""
_CALLS_OF_OWN_SUMS = 2
"""The calls that bring a user's sums together, and agree that all ranks could read them."""
_CALLS_OF_AREA = 2
"""The calls that bring the margins of an area under a curve together: their numbers come first."""


def plan_evaluation_waits(evaluations: Evaluations) -> Waits:
    """Return the waits of a run's evaluations. Raises UnknownWaits."""
    if evaluations.ranks == 1:
        return Waits(calls=0, least=0)
    _require_known(evaluations)
    count = len(evaluations.rounds)
    flushes = _count_flushes(evaluations)
    area = _count_area(evaluations)
    if evaluations.form == "merged":
        calls = flushes + area + _count_merged_by_method(evaluations)
        return Waits(calls=calls, least=calls)
    _require_outputs(evaluations)
    batches = evaluations.list_batches(evaluations.scored)
    moments = _count_moments(evaluations)
    subnets = count * _count_subnets(evaluations, batches, moments)
    if keeps_logits(evaluations):
        # The outputs for the sample travel with those of the last evaluation.
        subnets += _count_means(evaluations, [evaluations.sampled, *batches], moments)
        subnets -= _count_means(evaluations, batches, moments)
    if evaluations.form != "best":
        return Waits(calls=flushes + subnets, least=flushes + subnets)
    if scores_together(evaluations):
        calls = flushes + count * _count_both(evaluations)
        return Waits(calls=calls + area, least=calls)
    calls = flushes + count * _count_choice(evaluations)
    # The full network stays loaded if it wins.
    merged = count * count_calls_of_sums(evaluations.data, evaluations.plan) + area
    return Waits(calls=calls + max(merged, subnets), least=calls + min(merged, subnets))


def _require_known(evaluations: Evaluations) -> None:
    run = evaluations.run
    data = evaluations.data
    plan = evaluations.plan
    not_merged = evaluations.form != "merged"
    is_divided = plan.by_units or bool(plan.sharded)
    reasons = {
        "a program has the loop": data.network is not None,
        "the size of images changes": not evaluations.has_known_sizes,
        "a validation split": run.watches_validation,
        "train.max_minutes": run.train.max_minutes,
        "model.scale = fitted": run.model.scale == "fitted",
        "columns of ranks differ": bool(data.columns),
        "a divided graph": is_divided and evaluations.is_graph,
        "divided labels": is_divided and issubclass(data.scoring, MultiLabel),
        "replica groups": run.train.group_size != 1,
        "two methods, whose scores choose the form": run.method.finish and not_merged,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnknownWaits(reason)


def _require_outputs(evaluations: Evaluations) -> None:
    if not evaluations.knows_outputs:
        raise UnknownWaits("outputs of subnets side by side")


def _count_flushes(evaluations: Evaluations) -> int:
    """Return the calls that bring the newest values to their owners for all evaluations."""
    # Outputs that are added up need no weights of other ranks.
    if evaluations.form == "sum":
        return 0
    return count_flush_waits(
        evaluations.run, evaluations.architecture, evaluations.ranks, evaluations.rounds
    )


def _count_merged_by_method(evaluations: Evaluations) -> int:
    """Return the calls of all evaluations of the full network whose owners have the newest
    values."""
    calls = 0
    for phase in divide_by_method(evaluations.run, evaluations.rounds):
        present = evaluations.list_present(phase.run)
        calls += len(phase.rounds) * _count_merged(evaluations, present)
        if phase.is_handed_over:
            calls += _count_merged(evaluations, present=())
    return calls


def _count_merged(evaluations: Evaluations, present: Collection[str]) -> int:
    """Return the calls that load the full network but for weights that are ``present`` on every
    rank, calibrate it, and score it."""
    architecture = evaluations.architecture
    plan = evaluations.plan
    if plan.summed:
        numbers = count_summed(architecture, plan.summed, plan.at_once)
        sums = ring.count_calls_together([numbers], architecture.itemsize, evaluations.ranks)
        return _count_load(architecture, plan, present) + sums
    passes = len(evaluations.list_batches(evaluations.scored))
    if architecture.batch_norms:
        passes += 1
    calls = _count_load(architecture, plan, present) + count_calls_of_moments(architecture, plan)
    calls += passes * _count_calls_of_leaves(architecture, plan)
    return calls + count_calls_of_sums(evaluations.data, plan)


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


def _count_area(evaluations: Evaluations) -> int:
    """Return the calls of the details of a run's last score of the full network."""
    data = evaluations.data
    if evaluations.plan.sharded or not has_area(data.scoring, data):
        return 0
    return _CALLS_OF_AREA


def _count_subnets(evaluations: Evaluations, batches: Iterable[int], moments: int) -> int:
    """Return the calls that load subnets side by side, and add up their outputs for batches of so
    many examples, one after the other; with the outputs of the first, ``moments`` values."""
    calls = _count_load_of_subnets(evaluations)
    for examples in batches:
        calls += _count_means(evaluations, [examples], moments)
        moments = 0
    return calls


def _count_means(evaluations: Evaluations, batches: Iterable[int], *others: int) -> int:
    """Return the calls that add up the outputs of subnets for some batches, and ``others``, numbers
    of other values, at once."""
    architecture = evaluations.architecture
    numbers = [examples * architecture.numbers for examples in batches]
    numbers += [count for count in others if count]
    return ring.count_calls_together(numbers, architecture.itemsize, evaluations.ranks)


def _count_moments(evaluations: Evaluations) -> int:
    """Return the values of all subnets' moments. Raises UnknownWaits if deals decide their
    number."""
    if evaluations.moments is None:
        raise UnknownWaits("blocks that are redealt")
    return evaluations.moments


def _count_load_of_subnets(evaluations: Evaluations) -> int:
    # A transfer brings each rank what it lacks of its subnet.
    return int(bool(evaluations.list_lacking()))


def _count_choice(evaluations: Evaluations) -> int:
    """Return the calls to score the full network and the subnets side by side on the sample."""
    present = evaluations.list_present(evaluations.run)
    batches = evaluations.list_batches(evaluations.sampled)
    subnets = _count_subnets(evaluations, batches, _count_moments(evaluations))
    # Rank 0 tells the others both scores.
    return subnets + _count_merged(evaluations, present) + 1


def _count_both(evaluations: Evaluations) -> int:
    """Return the calls to score both forms on the sample and on the scored examples at once."""
    architecture = evaluations.architecture
    plan = evaluations.plan
    present = evaluations.list_present(evaluations.run)
    calls = _count_load_of_subnets(evaluations)
    examples = [evaluations.sampled, evaluations.scored]
    moments = _count_moments(evaluations)
    if not plan.summed:
        calls += _count_means(evaluations, examples, moments)
        return calls + _count_merged(evaluations, present)
    # What units contribute to the full network's outputs travels with the outputs of subnets.
    numbers = count_summed(architecture, plan.summed, plan.at_once)
    calls += _count_means(evaluations, examples, moments, numbers)
    # Rank 0 tells both scores.
    return calls + _count_load(architecture, plan, present) + 1


def count_temperature_waits(evaluations: Evaluations, form: str) -> int:
    """Return the waits for a classifier's temperature in a save after an evaluation in a ``form``.
    Raises UnknownWaits."""
    if not evaluations.data.scoring.one_class:
        return 0
    _require_known(evaluations)
    plan = evaluations.plan
    sampled = evaluations.sampled
    batches = evaluations.list_batches(sampled)
    if form != "merged":
        _require_outputs(evaluations)
        # A pass of the evaluation has left its logits.
        chosen = evaluations.form == "best" and may_keep_logits(sampled, evaluations.data.outputs)
        if chosen or keeps_logits(evaluations):
            return 0
        # The evaluation has told all ranks the moments.
        return _count_subnets(evaluations, batches, moments=0)
    if plan.leaves_outputs:
        return 0
    architecture = evaluations.architecture
    if len(architecture.table.output_names) > 1 or evaluations.is_graph:
        raise UnknownWaits("the number of scored outputs")
    run = evaluations.run
    last = [phase for phase in divide_by_method(run, [run.train.rounds]) if phase.rounds][-1]
    calls = _count_load(architecture, plan, evaluations.list_present(last.run))
    calls += len(batches) * _count_calls_of_leaves(architecture, plan)
    if not plan.sharded:
        calls += count_sums_of_temperature(sampled * architecture.numbers)
    return calls
