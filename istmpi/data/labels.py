"""What a column of given labels means: classes, or numbers to predict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from istmpi.errors import ConfigError, DataError, did_you_mean
from istmpi.foreign import printable
from istmpi.tasks import CLASSIFICATION, DENSE_MULTI_LABEL, MULTI_LABEL, REGRESSION

if TYPE_CHECKING:
    from istmpi.data.prepare.notes import Notes


def read_labels(
    parts: dict[str, np.ndarray], task: str | None, source: str, notes: Notes | None = None
) -> tuple[str, tuple[str, ...] | None, dict[str, np.ndarray]]:
    """The task, the names of the classes (None for other tasks) and y per split, from raw labels per split.

    Raw labels are [n] or [n, 1] of integers, booleans, strings or floats, or [n, outputs] of numbers. Without ``task``,
    one string, boolean or integer an example is its class, so is the place of the only 1 of [n, outputs] of 0 and 1;
    other such matrices are several labels an example, and all else is regression. ``notes`` are told what a matrix was
    taken for. Classes are numbered in the order of their values, over all splits; floats are classes only where they
    are whole. y is [n] int64, or [n, outputs] float32 or, of several labels, uint8.
    """
    known = CLASSIFICATION, REGRESSION, MULTI_LABEL
    if task is not None and task not in known:
        raise ConfigError(f"task {task!r} does not exist{did_you_mean(task, known)}")
    sizes = [len(part) for part in parts.values()]
    _require_alike(parts, source)
    labels = np.concatenate([_flat(part) for part in parts.values()])
    if not len(labels):
        raise DataError(f"{source} has no train examples; a data set needs at least one.")
    cuts = np.cumsum(sizes)[:-1]
    if task is None and labels.ndim == 2:
        task, why = _task_of_matrix(labels)
        if notes is not None:
            notes.assume(f"the labels {list(labels.shape)} are {why}: task {task}", "--task")
    if task is None:
        task = CLASSIFICATION if labels.ndim == 1 and labels.dtype.kind != "f" else REGRESSION
    if task == CLASSIFICATION:
        if labels.ndim != 1:
            if _task_of_matrix(labels)[0] != CLASSIFICATION:
                raise DataError(
                    f"{source}: the labels are {labels.shape[1]} numbers an example, not a single 1 among 0; "
                    "classification needs one class. Give class numbers, or --task multi-label or regression."
                )
            y = labels.argmax(axis=1).astype(np.int64)
            return task, tuple(map(str, range(labels.shape[1]))), dict(zip(parts, np.split(y, cuts)))
        _require_classes(parts, source)
        values, y = np.unique(labels, return_inverse=True)
        return task, tuple(_name(value) for value in values), dict(zip(parts, np.split(y.astype(np.int64), cuts)))
    if task == MULTI_LABEL:
        _require_flags(parts, source)
        y = dict(zip(parts, np.split(labels.astype(np.uint8), cuts)))
        never = np.flatnonzero(~y["train"].any(axis=0)).tolist()
        if never and notes is not None:
            shown = ", ".join(map(str, never[:8])) + ", ..." * (len(never) > 8)
            notes.leave_out(f"{len(never)} of {labels.shape[1]} labels, that no training example has: {shown}")
        return DENSE_MULTI_LABEL, None, y
    if labels.dtype.kind not in "fiub":
        raise DataError(f"{source}: the label {labels.flat[0]!s} is not a number; regression needs one. Check --label.")
    with np.errstate(over="ignore"):  # it is infinite then
        y = labels.astype(np.float32).reshape(len(labels), -1)
    if not np.isfinite(y).all():
        row = int(np.argwhere(~np.isfinite(y))[0, 0])
        raise DataError(f"{source}: the label of example {row} is {y[row]}; it must be finite. Remove such examples.")
    return task, None, dict(zip(parts, np.split(y, cuts)))


def _task_of_matrix(labels: np.ndarray) -> tuple[str, str]:
    """What a matrix of labels is for, and why."""
    if not _are_flags(labels).all():
        return REGRESSION, "not all 0 or 1"
    if (np.count_nonzero(labels, axis=1) == 1).all():
        return CLASSIFICATION, "0 but for a single 1 in each row"
    return MULTI_LABEL, "0 and 1"


def _are_flags(labels: np.ndarray) -> np.ndarray:
    return (labels == 0) | (labels == 1) if labels.dtype.kind in "biuf" else np.zeros(labels.shape, bool)


def _require_flags(parts: dict[str, np.ndarray], source: str) -> None:
    """DataError for labels that are no matrix of 0 and 1."""
    for split, part in parts.items():
        labels = _flat(part)
        if labels.ndim != 2:
            raise DataError(
                f"{source}: the labels are one an example; multi-label needs a matrix [n, k] of 0 and 1, k above 1. "
                "Leave --task out, or give classification."
            )
        if not (flags := _are_flags(labels)).all():
            row, column = np.argwhere(~flags)[0]
            value = labels[row, column].item()
            raise DataError(
                f"{source}: {split} example {row} has {value!r} for label {column}; multi-label needs 0 or 1. Correct "
                "it, or predict numbers: --task regression."
            )


def _require_alike(parts: dict[str, np.ndarray], source: str) -> None:
    """DataError for labels that cannot be put one behind the other."""
    kinds = {split: part.dtype.kind for split, part in parts.items()}
    if len({kind in "US" for kind in kinds.values()}) > 1 or not set(kinds.values()) <= {*"biufUS"}:
        types = ", ".join(str(part.dtype) for part in parts.values())
        raise DataError(f"{source}: the labels are of {types}; give whole numbers or names.")
    if len({_flat(part).shape[1:] for part in parts.values()}) > 1:
        raise DataError(f"{source}: the labels of its splits are of different shapes; give them one.")


def _require_classes(parts: dict[str, np.ndarray], source: str) -> None:
    """DataError for numbers that cannot name a class, for they are not whole."""
    for split, part in parts.items():
        labels = _flat(part)
        if labels.dtype.kind != "f":
            continue
        whole = np.isfinite(labels) & (labels == np.trunc(labels))
        if not whole.all():
            row = int(np.argmin(whole))
            raise DataError(
                f"{source}: the label of {f'{split} example'.strip()} {row} is {labels[row]}; a class is a whole "
                "number or a name. Correct it, or predict it as a number: --task regression."
            )


def _flat(labels: np.ndarray) -> np.ndarray:
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _name(value: object) -> str:
    """A class's name; 3.0 is class 3."""
    whole = isinstance(value, np.floating) and value == int(value)
    return printable(str(int(value)) if whole else str(value))
