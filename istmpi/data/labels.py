"""What a column of given labels means: classes, or numbers to predict."""

import numpy as np

from istmpi.data.dataset import CLASSIFICATION, REGRESSION, TASKS
from istmpi.errors import ConfigError, DataError, did_you_mean


def read_labels(
    parts: dict[str, np.ndarray], task: str | None, source: str
) -> tuple[str, tuple[str, ...] | None, dict[str, np.ndarray]]:
    """The task, the names of the classes (None for regression) and y per split, from raw labels per split.

    Raw labels are [n] or [n, 1] of integers, booleans, strings or floats, or [n, outputs] of numbers. Without ``task``,
    one string, boolean or integer an example is its class and all else is regression. Classes are numbered in the order
    of their values, over all splits. y is [n] int64, or [n, outputs] float32.
    """
    if task is not None and task not in TASKS:
        raise ConfigError(f"task {task!r} does not exist{did_you_mean(task, TASKS)}")
    sizes = [len(part) for part in parts.values()]
    labels = np.concatenate([_flat(part) for part in parts.values()])
    cuts = np.cumsum(sizes)[:-1]
    if task is None:
        task = CLASSIFICATION if labels.ndim == 1 and labels.dtype.kind != "f" else REGRESSION
    if task == CLASSIFICATION:
        if labels.ndim != 1:
            raise DataError(
                f"{source}: the labels are {labels.shape[1]} numbers an example; classification needs one. "
                "Give class numbers, or --task regression."
            )
        values, y = np.unique(labels, return_inverse=True)
        return task, tuple(_name(value) for value in values), dict(zip(parts, np.split(y.astype(np.int64), cuts)))
    if labels.dtype.kind not in "fiub":
        raise DataError(f"{source}: the label {labels.flat[0]!s} is not a number; regression needs one. Check --label.")
    y = labels.astype(np.float32).reshape(len(labels), -1)
    if not np.isfinite(y).all():
        row = int(np.argwhere(~np.isfinite(y))[0, 0])
        raise DataError(f"{source}: the label of example {row} is {y[row]}; it must be finite. Remove such examples.")
    return task, None, dict(zip(parts, np.split(y, cuts)))


def _flat(labels: np.ndarray) -> np.ndarray:
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _name(value: object) -> str:
    """A class's name; 3.0 is class 3."""
    return str(int(value)) if isinstance(value, np.floating) and value == int(value) else str(value)
