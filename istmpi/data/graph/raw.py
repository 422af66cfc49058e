"""A graph as its files have it, before anything is made of it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RawGraph:
    """Features and labels of nodes, edges by the numbers of nodes, and the nodes of each split, if these are told."""

    x: np.ndarray
    """``[n, features]``"""
    sparse: bool
    """The features came as a sparse matrix."""
    sources: np.ndarray
    targets: np.ndarray
    labels: np.ndarray
    """``[n]``, or ``[n, labels]``"""
    splits: Mapping[str, np.ndarray]
    """Ascending."""


def dense(offsets: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Compressed sparse rows as float32 ``shape``, or float64 where that rounds; what is there twice is added."""
    rounded = values.astype(np.float32)
    exact = (rounded == values).all()
    x = np.zeros(shape, np.float32 if exact else np.float64)
    np.add.at(x, (np.repeat(np.arange(shape[0]), np.diff(offsets)), columns), rounded if exact else values)
    return x
