"""Counts what ranks send to save a run's network and checkpoints, from its settings, its network
and its data. Without torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from istmpi.checkpoint.writers import NAME_BYTES
from istmpi.comm.objects import SLOT
from istmpi.config import Run
from istmpi.cost.one_round import flushed_bytes, published_bytes
from istmpi.data.dataset import Dataset
from istmpi.engine.layout import cut
from istmpi.evaluation.planned_bytes import count_calibration_bytes
from istmpi.evaluation.planning import Evaluations

CALLS = 4
"""Collective calls of a save after an evaluation, one after the other."""
CALLS_OF_JOINT = 2
"""Collective calls that bring subnets of method joint to their owners: what is dealt out, and what
each subnet has."""
OWN_DATA = "each rank has its own data"
CALLS_OF_ROWS = 2
"""Collective calls in which rank 0 learns of other ranks' rows if hosts share no folder."""
_AGREEMENTS = 2
"""The number of agreements among them."""
_NUMBER = 8
"""Bytes of a checksum, and of a dataset's place in the file."""


@dataclass(frozen=True)
class PlannedSaves:
    """The bytes of a run's saves, by all ranks."""

    sent: int | None = None
    """None if they are not known before the run."""
    rows: int | None = None
    """The bytes of other ranks' rows in the network's file, which also travel to rank 0 if hosts
    share no folder; None if ``sent`` is."""
    unknown: str = ""
    """Why the bytes are not known, in words; empty if they are."""


def plan_saves(evaluations: Evaluations) -> PlannedSaves:
    """Return the bytes that all ranks send to save a run's checkpoints and its network, with the
    writer direct.

    They are not known if weights travel for a classifier's temperature, or rows, or if the number
    of saves or of datasets is not known before the run.
    """
    run = evaluations.run
    ranks = evaluations.ranks
    unknown = list_unknown(run, evaluations.data)
    if unknown:
        return PlannedSaves(unknown=", ".join(unknown))
    checkpoints = list_checkpoints(run)
    unevaluated = [number for number in checkpoints if number % evaluations.every]
    calibration = count_calibration_bytes(evaluations)
    datasets = _count_datasets(evaluations)
    to_owners = _count_bytes_to_owners(evaluations, checkpoints, unevaluated)
    if calibration is None:
        return PlannedSaves(unknown="weights or labels travel for the temperature of the classes")
    if datasets is None or to_owners is None:
        return PlannedSaves(unknown="each rank saves its own values")
    sent = calibration + to_owners
    sent += (1 + len(checkpoints)) * count_save_bytes(datasets, ranks)
    rows = _count_rows_of_others(evaluations)
    return PlannedSaves(sent=sent, rows=rows)


def list_checkpoints(run: Run) -> list[int]:
    """Return the rounds, from 1, after which a run saves a checkpoint."""
    every = run.checkpoint.every
    if not every:
        return []
    return [*range(every, run.train.rounds, every)]


def list_unknown(run: Run, data: Dataset) -> list[str]:
    """Return the settings that make the bytes of saves unknown before the run."""
    writer = run.checkpoint.writer
    if writer not in ("auto", "direct"):
        return [f"checkpoint.writer = {writer}"]
    reasons = {
        "checkpoint.best": run.checkpoint.best,
        "train.max_minutes": run.train.max_minutes,
        "train.patience": run.train.patience,
        "train.resolution": run.train.resolution,
        OWN_DATA: run.data.differs,
        "a program has the loop": data.network is not None,
    }
    return [reason for reason, holds in reasons.items() if holds]


def _count_rows_of_others(evaluations: Evaluations) -> int:
    """Return the bytes of all tensors that owners store, without those of rank 0."""
    architecture = evaluations.architecture
    total = 0
    for parameter in architecture.parameters.values():
        rows, *columns = parameter.pattern.shape(architecture.lengths)
        others = rows - len(cut(rows, evaluations.ranks, 0))
        total += others * prod(columns) * parameter.itemsize
    return total * (1 + len(evaluations.spec.slots(evaluations.run)))


def _count_bytes_to_owners(
    evaluations: Evaluations, checkpoints: list[int], unevaluated: list[int]
) -> int | None:
    """Return the bytes that bring the newest values to their owners for all saves."""
    run = evaluations.run
    architecture = evaluations.architecture
    ranks = evaluations.ranks
    if evaluations.spec.sums_outputs:
        return published_bytes(run, architecture, ranks, [*checkpoints, run.train.rounds])
    # An evaluation of the same round has sent them there.
    return flushed_bytes(run, architecture, ranks, unevaluated)


def count_save_bytes(datasets: int, ranks: int) -> int:
    """Return the bytes that all ranks send for a file to which each writes rows of ``datasets``."""
    # Beside checksums, a rank says whether it may save.
    to_all = _AGREEMENTS * SLOT + (1 + datasets) * _NUMBER
    # Rank 0 sends the file's name, the number of failures, and the places of datasets and their
    # checksums.
    from_root = NAME_BYTES + (1 + 2 * datasets) * _NUMBER
    return (ranks - 1) * (ranks * to_all + from_root)


def _count_datasets(evaluations: Evaluations) -> int | None:
    """Return the number of datasets that have rows of several ranks; None if rounds decide it."""
    run = evaluations.run
    architecture = evaluations.architecture
    spec = evaluations.spec
    if run.method.finish:
        return None
    of_a_parameter = 1 + len(spec.slots(run))
    shared = len(architecture.parameters) * of_a_parameter + len(architecture.code.given)
    if spec.sums_outputs:
        # Each subnet has its own values of what is not dealt out.
        return shared + len(spec.shared(run, architecture)) * of_a_parameter
    own_values = spec.own_state or spec.own_slots(run) or spec.own_networks or spec.legs
    # Ranks also save what they have not yet sent.
    unsent = run.checkpoint.every and spec.share_every(run) > 1
    if own_values or unsent:
        return None
    if spec.largest:
        if spec.optimizer_slots(run):
            return None
        # The changes that a rank has not sent.
        shared += len(architecture.parameters)
    return shared
