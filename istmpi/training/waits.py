"""Counts the waits of a run before it, by purpose: calls in which ranks wait for each other, one
after the other, as `istmpi.comm.ledger` counts them. Without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from istmpi.config import Run
from istmpi.cost.waits import UnknownWaits, Waits, count_flush_waits, count_round_waits
from istmpi.evaluation.planned_waits import count_temperature_waits, plan_evaluation_waits
from istmpi.evaluation.planning import Evaluations
from istmpi.network.arguments import find_origin
from istmpi.tasks import OwnTask
from istmpi.training.saves import (
    CALLS,
    CALLS_OF_JOINT,
    CALLS_OF_ROWS,
    OWN_DATA,
    list_checkpoints,
    list_unknown,
)

_CALLS_OF_START = 5
"""The calls of a start: facts of all processes, the choice of the folder with the data, the
network, the folder as rank 0 makes it, and who sees it."""
_CALLS_OF_START_APART = 1
"""The further calls of a start if hosts share no folder."""


@dataclass(frozen=True)
class PlannedWaits:
    """The waits of a new run, by purpose."""

    start: Waits
    rounds: Waits
    evaluation: Waits
    saving: Waits
    apart: tuple[int, int] | None = None
    """The fewest and the most further waits of saves if hosts share no folder; None if waits of
    saves are not known."""
    start_apart: int = _CALLS_OF_START_APART
    """The further waits of the start then."""


def plan_waits(evaluations: Evaluations) -> PlannedWaits:
    """Return the waits of a new run whose hosts share a folder."""
    saving = _ask(_plan_saves, evaluations)
    apart = None
    if saving.calls:
        # A long description of a checkpoint takes a second call.
        apart = (CALLS_OF_ROWS, CALLS_OF_ROWS + len(list_checkpoints(evaluations.run)))
    return PlannedWaits(
        start=_ask(_plan_start, evaluations),
        rounds=_ask(_plan_rounds, evaluations),
        evaluation=_ask(plan_evaluation_waits, evaluations),
        saving=saving,
        apart=apart,
    )


def _ask(plan: Callable[[Evaluations], Waits], evaluations: Evaluations) -> Waits:
    try:
        return plan(evaluations)
    except UnknownWaits as reason:
        return Waits(unknown=str(reason))


def _plan_start(evaluations: Evaluations) -> Waits:
    if evaluations.ranks == 1:
        return Waits(calls=0, least=0)
    run = evaluations.run
    data = evaluations.data
    reasons = {
        "a program has the loop": data.network is not None,
        "train.init": bool(run.train.init),
        "the size of images changes": any(side for _, side, _ in run.stretches()),
        "columns of ranks differ": bool(data.columns),
        "replica groups": run.train.group_size != 1,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnknownWaits(reason)
    calls = _CALLS_OF_START + count_threads(run)
    # Rank 0 tells the others the table that it finds, which may be long.
    tables = int(find_origin(run.model.name).is_inspected)
    spec = evaluations.spec
    # What travels beside local steps has a communicator of its own.
    if spec.sums_outputs or spec.leaves_early(run, evaluations.architecture, evaluations.ranks):
        calls += 1
    # A mean over examples counts those of each rank.
    if spec.in_passes:
        calls += 1
    return Waits(calls=calls + 2 * tables, least=calls + tables)


def count_threads(run: Run) -> int:
    """Return how many threads of a run have a communicator of their own, which a call makes: those
    of the hang watch and of checkpoints. Ranks have them if their MPI library lets threads call
    it."""
    checkpoint = run.checkpoint
    return int(run.comm.patience > 0) + int(bool(checkpoint.every) and not checkpoint.wait)


def _plan_rounds(evaluations: Evaluations) -> Waits:
    run = evaluations.run
    data = evaluations.data
    own_loss = issubclass(data.scoring, OwnTask)
    reasons = {
        "a program has the loop": data.network is not None,
        "train.max_minutes": run.train.max_minutes,
        "train.patience": run.train.patience,
        "checkpoint.best": run.checkpoint.best,
        "columns of ranks differ": bool(data.columns),
        "replica groups": run.train.group_size != 1,
        # Ranks compare the counts of its pairs in each step, if it returns any.
        "a function for the loss": own_loss and evaluations.spec.sends_every_step,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnknownWaits(reason)
    pauses = {*evaluations.rounds, *list_checkpoints(run)}
    calls = count_round_waits(run, evaluations.architecture, evaluations.ranks, pauses)
    return Waits(calls=calls, least=calls)


def _plan_saves(evaluations: Evaluations) -> Waits:
    """Return the waits of a run's saves, as `istmpi.training.saves.plan_saves` has their bytes."""
    if evaluations.ranks == 1:
        return Waits(calls=0, least=0)
    run = evaluations.run
    # Values of a rank's own take no call more.
    unknown = [reason for reason in list_unknown(run, evaluations.data) if reason != OWN_DATA]
    if unknown:
        raise UnknownWaits(", ".join(unknown))
    if run.train.group_size != 1:
        raise UnknownWaits("replica groups")
    checkpoints = list_checkpoints(run)
    unevaluated = [number for number in checkpoints if number % evaluations.every]
    calls = CALLS * (1 + len(checkpoints))
    calls += _count_to_owners(evaluations, checkpoints, unevaluated)
    forms = [evaluations.form]
    if evaluations.form == "best":
        forms = ["merged", "blocks"]
    # The network has the form that scores better then.
    of_forms = [count_temperature_waits(evaluations, form) for form in forms]
    return Waits(calls=calls + max(of_forms), least=calls + min(of_forms))


def _count_to_owners(
    evaluations: Evaluations, checkpoints: list[int], unevaluated: list[int]
) -> int:
    """Return the calls that bring the newest values to their owners for all saves."""
    if evaluations.spec.sums_outputs:
        return CALLS_OF_JOINT * (1 + len(checkpoints))
    # An evaluation of the same round has sent them there.
    return count_flush_waits(
        evaluations.run, evaluations.architecture, evaluations.ranks, unevaluated
    )
