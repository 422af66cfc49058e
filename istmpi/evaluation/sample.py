"""The examples of an evaluation: the scored examples of a split, and a sample for calibration."""

import numpy as np

from istmpi import rng
from istmpi.config import Run
from istmpi.config.sections import Evaluate
from istmpi.cost.calibration import SAMPLED, calibration_examples
from istmpi.data.dataset import Dataset
from istmpi.data.graph.split import GraphSplit
from istmpi.network.architecture import Architecture

FITTED_ON = 64
"""The most examples over which factors are fitted."""


def count_scored(evaluate: Evaluate, data: Dataset, length: int) -> int:
    """Return how many of ``length`` examples are scored: by the settings, the task, or all."""
    return min(evaluate.examples or data.scoring.scored or length, length)


def choose_scored(evaluate: Evaluate, data: Dataset, length: int) -> np.ndarray:
    """Return the rows of a split of ``length`` that are scored, at equal distances."""
    count = count_scored(evaluate, data, length)
    if count >= length:
        return np.arange(length)
    return np.arange(count) * length // count


def count_scored_in_training(run: Run, data: Dataset) -> int:
    """Return the number of examples that an evaluation in training scores.

    If data are local, they are this rank's.
    """
    split = data.test
    if run.watches_validation:
        split = data.splits.get("validation", data.test)
    return count_scored(run.evaluate, data, len(split))


def count_sampled(run: Run, architecture: Architecture, data: Dataset, ranks: int) -> int:
    if isinstance(data.train, GraphSplit):
        return run.evaluate.calibration_examples or SAMPLED
    sampled = calibration_examples(
        run, architecture, ranks, len(data.train), count_scored_in_training(run, data)
    )
    if run.data.placement == "local":
        return sampled
    return min(sampled, len(data.train))


def draw_calibration_rows(
    seed: int, length: int, count: int, share: int = 1, stream: int = 0
) -> np.ndarray:
    """Draw ``count // share`` of ``length`` rows, sorted.

    They are at least 2 if ``share``, a number of ranks, is above 1.
    """
    order = rng.permutation(length, rng.key(seed, "calibration", stream))
    if share > 1:
        count = max(count // share, 2)  # one value has no variance
    return np.sort(order[:count])


def choose_fitted_rows(rows: np.ndarray, rank: int, ranks: int, least: int) -> np.ndarray:
    """Return a rank's rows, at least ``least``, for a fit over up to `FITTED_ON` of all ``rows``;
    rows are repeated if they are too few."""
    count = max(min(len(rows), FITTED_ON), ranks * least)
    chosen = rows[np.arange(count) * len(rows) // count]
    return chosen[rank::ranks]
