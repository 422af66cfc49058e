"""The test split of data that come without one, and the validation split that a run asks for."""

from collections.abc import Mapping

import numpy as np

from istmpi import rng
from istmpi.errors import ConfigError, DataError

ONE_IN = 5
ONE_IN_FIVE = "one in five for testing, drawn"


def held_out(count: int, labels: np.ndarray | None = None) -> np.ndarray:
    """Return which of ``count`` examples are test examples: [count] bool, one in five, a fixed function of its
    arguments.

    With ``labels`` [count] every class gives its own fifth. Of two examples on, both splits have at least one.
    """
    order = rng.permutation(count, rng.key("held out", count))
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    mask = np.zeros(count, dtype=bool)
    mask[order[::ONE_IN]] = count > 1
    return mask


def with_test(
    splits: Mapping[str, tuple[np.ndarray, np.ndarray]], source: str, by_class: bool = False
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return x and y of each split; of those under the name ``""`` one in five is a test example."""
    if "" in splits:
        x, y = splits[""]
        test = held_out(len(y), y if by_class else None)
        splits = {"train": (x[~test], y[~test]), "test": (x[test], y[test])}
    for split, (_, y) in splits.items():
        if not len(y):
            raise DataError(f"{source} has no {split} examples; it needs at least one.")
    return dict(splits)


def divided(count: int, fraction: float, seed: int, labels: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the examples that stay, and of a fraction that is held out, drawn by a seed; both
    ascending.

    With ``labels`` [count] int64 every class gives its share.
    """
    held = round(count * fraction)
    if not 0 < held < count:
        raise ConfigError(
            f"data.validation = {fraction} of {count} training examples is {held}; both parts need at least one. Give "
            f"another fraction, or leave it out."
        )
    order = rng.permutation(count, rng.key(seed, "validation"))
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    mask = np.zeros(count, dtype=bool)
    mask[order[(2 * np.arange(held) + 1) * count // (2 * held)]] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)
