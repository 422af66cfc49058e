"""Mean and deviation of a stream of blocks, in one pass."""

from typing import NamedTuple

import numpy as np


class Normalisation(NamedTuple):
    """The normalisation of examples: (x - offset, in float64) as float32, less the mean, over the deviation."""

    mean: np.ndarray
    std: np.ndarray
    offset: np.ndarray | None = None

    @property
    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean and deviation of the examples as they are in the data."""
        return (self.mean if self.offset is None else self.mean + self.offset), self.std


class Moments:
    """Per-feature mean and sum of squared deviations, merged block by block (Chan, Golub and LeVeque 1983)."""

    def __init__(self, features: int):
        self._count = 0
        self._mean = np.zeros(features)
        self._squares = np.zeros(features)

    def add(self, x: np.ndarray) -> None:
        if len(x) == 0:
            return
        mean = x.mean(axis=0, dtype=np.float64)
        deviation = x.astype(np.float64)
        deviation -= mean
        self.merge(len(x), mean, np.einsum("ij,ij->j", deviation, deviation))

    @property
    def parts(self) -> tuple[int, np.ndarray, np.ndarray]:
        return self._count, self._mean, self._squares

    def merge(self, more: int, mean: np.ndarray, squares: np.ndarray) -> None:
        shift = mean - self._mean
        count = self._count + more
        self._squares += squares
        self._squares += shift**2 * (self._count * more / count)
        self._mean += shift * (more / count)
        self._count = count

    def normalisation(self, groups: int, offset: np.ndarray | None = None) -> Normalisation:
        """Return the mean and the deviation to normalise with, of examples that are less an ``offset`` already.

        The features are ``groups`` runs of equal length with one mean and deviation each: 1 for all alike, the channels
        of an image, or all features. A constant group gets deviation 1.
        """
        means = self._mean.reshape(groups, -1)
        mean = means.mean(axis=1, keepdims=True)
        within = self._squares.reshape(groups, -1).mean(axis=1, keepdims=True) / self._count
        between = ((means - mean) ** 2).mean(axis=1, keepdims=True)
        std = np.sqrt(within + between)
        # Rounding leaves a constant feature a deviation of the order of its last digit.
        std[std <= 1e-7 * np.abs(mean)] = 1.0
        features = len(self._mean) // groups
        mean, std = (np.repeat(values, features).astype(np.float32) for values in (mean, std))
        return Normalisation(mean, std, offset)
