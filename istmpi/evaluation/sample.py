"""Which examples an evaluation passes: those of a split that are scored, and a sample to calibrate on."""

from __future__ import annotations

import numpy as np

from istmpi import rng
from istmpi.config import Run
from istmpi.cost.calibration import SAMPLED, calibration_examples
from istmpi.data.dataset import Dataset
from istmpi.models.architecture import Architecture
from istmpi.tasks import GRAPH_TASKS, NEXT_TOKEN

WINDOWS = 512
"""Of text that are scored where a run does not say."""


def scored_of(run: Run, task: str, length: int) -> int:
    """How many examples of a split of some length are scored."""
    return min(run.evaluate.examples or (WINDOWS if task == NEXT_TOKEN else length), length)


def scored_in_training(run: Run, data: Dataset) -> int:
    """How many examples an evaluation on the way scores, of those of this rank."""
    split = data.splits.get("validation", data.test) if run.watches_validation else data.test
    return scored_of(run, data.task, len(split))


def sampled_of(run: Run, architecture: Architecture, data: Dataset, ranks: int) -> int:
    """How many training examples a run on so many ranks calibrates on."""
    if data.task in GRAPH_TASKS:
        return run.evaluate.calibration_examples or SAMPLED
    sampled = calibration_examples(run, architecture, ranks, len(data.train), scored_in_training(run, data))
    return sampled if run.data.placement == "local" else min(sampled, len(data.train))


def calibration_rows(run: Run, length: int, wanted: int, share: int = 1, stream: int = 0) -> np.ndarray:
    """So many rows of a training split of some length, or one of so many equal shares of them; sorted."""
    order = rng.permutation(length, rng.key(run.train.seed, "calibration", stream))
    return np.sort(order[: wanted if share == 1 else max(wanted // share, 2)])
