"""Counts the waits of a run before it, by purpose: calls in which ranks wait for each other, one
after the other, as `istmpi.comm.ledger` counts them. Without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.cost.waits import UnknownWaits, Waits, count_flush_waits, count_round_waits
from istmpi.data.dataset import Dataset
from istmpi.evaluation.planned_bytes import list_evaluated
from istmpi.evaluation.planned_waits import count_temperature_waits, plan_evaluation_waits
from istmpi.evaluation.planning import choose_form, choose_interval
from istmpi.network.architecture import Architecture
from istmpi.tasks import OwnTask
from istmpi.training.saves import (
    CALLS,
    CALLS_OF_CHECKPOINT,
    CALLS_OF_JOINT,
    CALLS_OF_MOMENTS,
    CALLS_OF_ROWS,
    OWN_DATA,
    list_checkpoints,
    list_unknown,
)


@dataclass(frozen=True)
class PlannedWaits:
    """The waits of a new run, by purpose. Those of its start are not known before it."""

    rounds: Waits
    evaluation: Waits
    saving: Waits
    apart: tuple[int, int] | None = None
    """The fewest and the most further waits of saves if hosts share no folder; None if waits of
    saves are not known."""


def plan_waits(run: Run, architecture: Architecture, data: Dataset, ranks: int) -> PlannedWaits:
    """Return the waits of a new run whose hosts share a folder."""
    saving = _ask(_plan_saves, run, architecture, data, ranks)
    apart = None
    if saving.calls:
        # A long description of a checkpoint takes a second call.
        apart = (CALLS_OF_ROWS, CALLS_OF_ROWS + len(list_checkpoints(run)))
    return PlannedWaits(
        rounds=_ask(_plan_rounds, run, architecture, data, ranks),
        evaluation=_ask(plan_evaluation_waits, run, architecture, data, ranks),
        saving=saving,
        apart=apart,
    )


Plan = Callable[[Run, Architecture, Dataset, int], Waits]


def _ask(plan: Plan, run: Run, architecture: Architecture, data: Dataset, ranks: int) -> Waits:
    try:
        return plan(run, architecture, data, ranks)
    except UnknownWaits as reason:
        return Waits(unknown=str(reason))


def _plan_rounds(run: Run, architecture: Architecture, data: Dataset, ranks: int) -> Waits:
    spec = find_method_spec(run.method.name)
    task = data.scoring
    reasons = {
        "a program has the loop": data.network is not None,
        "train.max_minutes": run.train.max_minutes,
        "train.patience": run.train.patience,
        "checkpoint.best": run.checkpoint.best,
        "columns of ranks differ": bool(data.columns),
        "replica groups": run.train.group_size != 1,
        # Ranks compare the counts of its pairs in each step, if it returns any.
        "a function for the loss": spec.sends_every_step and issubclass(task, OwnTask),
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnknownWaits(reason)
    evaluated = list_evaluated(run, choose_interval(run, architecture, data, ranks))
    pauses = {*evaluated, *list_checkpoints(run)}
    calls = count_round_waits(run, architecture, ranks, pauses)
    return Waits(calls=calls, least=calls)


def _plan_saves(run: Run, architecture: Architecture, data: Dataset, ranks: int) -> Waits:
    """Return the waits of a run's saves, as `istmpi.training.saves.plan_saves` has their bytes."""
    if ranks == 1:
        return Waits(calls=0, least=0)
    # Values of a rank's own take no call more.
    unknown = [reason for reason in list_unknown(run, data) if reason != OWN_DATA]
    if unknown:
        raise UnknownWaits(", ".join(unknown))
    if run.train.group_size != 1:
        raise UnknownWaits("replica groups")
    checkpoints = list_checkpoints(run)
    every = choose_interval(run, architecture, data, ranks)
    unevaluated = [number for number in checkpoints if number % every]
    calls = CALLS + len(checkpoints) * CALLS_OF_CHECKPOINT
    calls += _count_to_owners(run, architecture, ranks, checkpoints, unevaluated)
    form = choose_form(run)
    forms = [form]
    if form == "best":
        forms = ["merged", "blocks"]
    of_forms = []
    of_evaluated = []
    for form in forms:
        moments = 0
        if form != "merged" and architecture.batch_norms:
            moments = CALLS_OF_MOMENTS
        temperature = count_temperature_waits(run, architecture, data, ranks, form)
        of_forms.append(temperature + moments)
        # Subnets have moments after an evaluation alone.
        of_evaluated.append(moments * (len(checkpoints) - len(unevaluated)))
    # Each save has the form that scores better then.
    return Waits(
        calls=calls + max(of_forms) + max(of_evaluated),
        least=calls + min(of_forms) + min(of_evaluated),
    )


def _count_to_owners(
    run: Run, architecture: Architecture, ranks: int, checkpoints: list[int], unevaluated: list[int]
) -> int:
    """Return the calls that bring the newest values to their owners for all saves."""
    spec = find_method_spec(run.method.name)
    if spec.sums_outputs:
        return CALLS_OF_JOINT * (1 + len(checkpoints))
    # An evaluation of the same round has sent them there.
    return count_flush_waits(run, architecture, ranks, unevaluated)
