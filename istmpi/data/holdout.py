"""Draws a test split for data that have none, and the validation split of a run."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from istmpi import rng
from istmpi.errors import ConfigError, DataError

ONE_IN_FIVE = "one in five for testing, drawn"


def describe_drawn(by_class: bool) -> str:
    return ONE_IN_FIVE + " from each class" * by_class


class TestSplit(NamedTuple):
    """The setting ``data.test``: a fraction of the data that a run holds out for testing, drawn by
    a seed."""

    fraction: float | None = None
    seed: int = 0
    required: bool = False
    """True: with a test split, ``fraction`` is refused. False: the split is used."""

    def is_drawn(self, source: str, has_one: bool) -> bool:
        if self.fraction and has_one and self.required:
            raise ConfigError(
                f"data.test = {self.fraction}, but {source} has a test split. Leave data.test out "
                "to use it."
            )
        return bool(self.fraction) and not has_one

    def indices(
        self, count: int, labels: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        return split_indices(count, self.fraction or 0.0, self.seed, labels, "test")


NO_TEST = TestSplit()


def draw_test(count: int, labels: np.ndarray | None = None) -> np.ndarray:
    """Return a mask [count] of the test examples: one in five, or one in five of each class in
    ``labels`` [count]."""
    mask = np.zeros(count, dtype=bool)
    # Every fifth in an order by class is a fifth of each class. A single example is for training.
    mask[_draw_order(count, labels, "held out", count)[::5]] = count > 1
    return mask


def _draw_order(count: int, labels: np.ndarray | None, *key: int | str) -> np.ndarray:
    """Return a random order of the examples; with ``labels``, one class after another."""
    # The stable sort keeps the random order within a class.
    order = rng.permutation(count, rng.key(*key))
    if labels is None:
        return order
    return order[np.argsort(labels[order], kind="stable")]


def ensure_test(
    splits: Mapping[str, tuple[np.ndarray, np.ndarray]], source: str, by_class: bool = False
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return x and y per split; without splits (key ``""``), one in five is for testing. DataError
    if one is empty."""
    if "" in splits:
        x, y = splits[""]
        test = draw_test(len(y), y if by_class else None)
        splits = {"train": (x[~test], y[~test]), "test": (x[test], y[test])}
    for split, (_, y) in splits.items():
        if not len(y):
            raise DataError(f"{source} has no {split} examples; it needs at least one.")
    return dict(splits)


def split_indices(
    count: int,
    fraction: float,
    seed: int,
    labels: np.ndarray | None = None,
    split: str = "validation",
) -> tuple[np.ndarray, np.ndarray]:
    """Return the remaining and the held-out row numbers, by class with ``labels``. ConfigError if a
    part is empty."""
    held = round(count * fraction)
    if not 0 < held < count:
        raise ConfigError(
            f"data.{split} = {fraction} of {count} training examples is {held}; both parts need at "
            "least one. Give another fraction, or leave it out."
        )
    # The middles of equal stretches of an order by class: each class gives its fraction.
    middles = (2 * np.arange(held) + 1) * count // (2 * held)
    mask = np.zeros(count, dtype=bool)
    mask[_draw_order(count, labels, seed, split)[middles]] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)
