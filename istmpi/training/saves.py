"""Counts what ranks send to save a run's network and checkpoints, from its settings, its network
and its data. Without torch."""

from __future__ import annotations

from istmpi.checkpoint.writers import NAME_BYTES
from istmpi.comm.objects import SLOT
from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.cost.one_round import flushed_bytes
from istmpi.data.dataset import Dataset
from istmpi.evaluation.planning import choose_interval, count_calibration_bytes
from istmpi.network.architecture import Architecture

CALLS = 4
"""Collective calls of a save after an evaluation, one after the other."""
CALLS_OF_MOMENTS = 2
"""Collective calls that bring the moments of subnets side by side together."""
_AGREEMENTS = 2
"""The number of agreements among them; before a checkpoint, which a thread may write, ranks agree
once more."""
_NUMBER = 8
"""Bytes of a checksum, and of a dataset's place in the file."""


def plan_saves(run: Run, architecture: Architecture, data: Dataset, ranks: int) -> int | None:
    """Return the bytes that all ranks send to save a run's checkpoints and its network, with the
    writer direct.

    None if weights travel for a classifier's temperature, or rows, or moments of subnets side by
    side. None, too, if the number of saves or of datasets is not known before the run.
    """
    writer = run.checkpoint.writer
    of_rows = writer not in ("auto", "direct")
    if of_rows or run.checkpoint.best or run.train.max_minutes or run.train.patience:
        return None
    if run.data.differs or run.train.resolution or data.network is not None:
        return None
    calibration = count_calibration_bytes(run, architecture, data, ranks)
    datasets = _count_datasets(run, architecture)
    if calibration is None or datasets is None:
        return None
    checkpoints: range | list[int] = []
    if run.checkpoint.every:
        checkpoints = range(run.checkpoint.every, run.train.rounds, run.checkpoint.every)
    # Values go to their owners unless an evaluation of the same round has sent them there.
    evaluated = choose_interval(run, architecture, data, ranks)
    unsent = [number for number in checkpoints if number % evaluated]
    flushed = flushed_bytes(run, architecture, ranks, unsent)
    if flushed is None:
        return None
    agreed = len(checkpoints) * (ranks - 1) * ranks * SLOT
    return (
        calibration + flushed + agreed + (1 + len(checkpoints)) * count_save_bytes(datasets, ranks)
    )


def count_save_bytes(datasets: int, ranks: int) -> int:
    """Return the bytes that all ranks send for a file to which each writes rows of ``datasets``."""
    # Beside checksums, a rank says whether it may save.
    to_all = _AGREEMENTS * SLOT + (1 + datasets) * _NUMBER
    # Rank 0 sends the file's name, the number of failures, and the places of datasets and their
    # checksums.
    from_root = NAME_BYTES + (1 + 2 * datasets) * _NUMBER
    return (ranks - 1) * (ranks * to_all + from_root)


def _count_datasets(run: Run, architecture: Architecture) -> int | None:
    """Return the number of datasets that have rows of several ranks; None if rounds decide it."""
    spec = find_method_spec(run.method.name)
    own_values = spec.own_state or spec.own_slots(run) or spec.own_networks or spec.legs
    # Ranks also save what they have not yet sent.
    unsent = run.checkpoint.every and spec.share_every(run) > 1
    if run.method.finish or own_values or unsent:
        return None
    of_a_parameter = 1 + len(spec.slots(run))
    if spec.largest:
        if spec.optimizer_slots(run):
            return None
        of_a_parameter += 1  # the changes that a rank has not sent
    return len(architecture.parameters) * of_a_parameter + len(architecture.code.given)
