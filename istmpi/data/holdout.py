"""The test split of data that come without one."""

import numpy as np

from istmpi import rng

ONE_IN = 5
ONE_IN_FIVE = "one in five for testing, drawn"
"""What is said of such a split."""


def held_out(count: int, labels: np.ndarray | None = None) -> np.ndarray:
    """Which of ``count`` examples are test examples: [count] bool, one in five; a fixed function of its arguments.

    With ``labels`` [count] every class gives its own fifth, to within one example. From two examples on, both splits
    have at least one.
    """
    order = rng.permutation(count, rng.key("held out", count))
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    mask = np.zeros(count, dtype=bool)
    mask[order[::ONE_IN]] = count > 1
    return mask
