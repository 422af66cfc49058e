"""The examples of an evaluation: the scored examples of a split, and a sample for calibration."""

import numpy as np

from istmpi import rng
from istmpi.config.sections import Evaluate
from istmpi.data.dataset import Dataset

FITTED_ON = 64
"""The most examples over which factors are fitted."""
MOST_KEPT = 2**18
"""The most logits that stay in the memory from an evaluation to a save: 2 MB."""
TOGETHER_BYTES = 2**17
"""The most bytes of outputs that subnets add up before it is known that they are needed: a line of
10 Mbit/s carries them in the time of a round trip of 0.1 s."""


def count_scored(evaluate: Evaluate, data: Dataset, length: int) -> int:
    """Return how many of ``length`` examples are scored: by the settings, the task, or all."""
    return min(evaluate.examples or data.scoring.scored or length, length)


def may_keep_logits(examples: int, classes: int) -> bool:
    """Return True if the logits of so many examples may stay in the memory until a save."""
    return examples * classes <= MOST_KEPT


def choose_scored(evaluate: Evaluate, data: Dataset, length: int) -> np.ndarray:
    """Return the rows of a split of ``length`` that are scored, at equal distances."""
    count = count_scored(evaluate, data, length)
    if count >= length:
        return np.arange(length)
    return np.arange(count) * length // count


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
