"""Finds out what labels mean: classes, several labels per example, or numbers to predict."""

import numpy as np

from istmpi.data.class_list import require_listed, require_several, require_trained
from istmpi.data.decoder import Notes, first_of
from istmpi.errors import ConfigError, DataError, did_you_mean
from istmpi.foreign import printable
from istmpi.tasks import CLASSIFICATION, DENSE_LABELS, MULTI_LABEL, REGRESSION

_TASK = "--task"
ONE_CLASS = "A network needs at least two to tell apart: check the labels."
Parts = dict[str, np.ndarray]


def read_labels(
    parts: Parts,
    task: str | None,
    source: str,
    *,
    notes: Notes | None = None,
    classes: tuple[str, ...] | None = None,
    cure: str = ONE_CLASS,
) -> tuple[str, tuple[str, ...] | None, Parts]:
    """Return the task, the class names (None without classes) and y per split, from raw labels per
    split.

    If ``task`` is None, the labels decide. Strings, booleans and integers are classes. A matrix of
    0 and 1 means classes if each row has a single 1, otherwise several labels per example.
    Everything else is regression. ``classes``: all class names in order; by default those of the
    labels. ``cure``: the last sentence of an error about a single class. y is [n] int64 for
    classes, [n, outputs] uint8 for several labels and, for regression, finite [n, outputs] of the
    labels' type. Raises ConfigError or DataError.
    """
    tasks = CLASSIFICATION, REGRESSION, MULTI_LABEL
    notes, decided = notes or Notes(), task is None
    if not decided and task not in tasks:
        raise ConfigError(f"task {task!r} does not exist{did_you_mean(task, tasks)}")
    parts = {split: read_names(_flat(part), source, split) for split, part in parts.items()}
    labels = _joined(parts, source)
    if not len(labels):
        raise DataError(f"{source} has no train examples; a data set needs at least one.")
    if decided and labels.ndim == 2:
        task, why = _task_of_matrix(labels)
        notes.assume(f"{labels.shape[0]:,} rows of {labels.shape[1]} labels, {why}", _TASK)
    elif decided:
        _require_one_kind(parts, labels, source)
        task = REGRESSION if labels.dtype.kind == "f" else CLASSIFICATION
        if labels.dtype.kind in "iufO" and (
            task == CLASSIFICATION or (labels == np.trunc(labels)).all()
        ):
            count, taken = (
                len(np.unique(labels)),
                "numbers to predict" if task == REGRESSION else "classes",
            )
            notes.assume(
                f"{len(labels):,} labels are whole numbers of {count:,} values: treated as {taken}",
                _TASK,
            )
    if task == CLASSIFICATION:
        named, y = _classes(labels, parts, source)
        codes = _split(y.reshape(-1).astype(np.int64), parts)
        if classes is not None:
            require_listed(named, classes, source)
            places = np.array([classes.index(name) for name in named], np.int64)
            return task, classes, {split: places[codes[split]] for split in codes}
        require_several(named, source, cure)
        if "train" in codes:
            trained = {named[code] for code in np.unique(codes["train"])}
            for split, y in codes.items():
                require_trained(trained, [named[code] for code in np.unique(y)], split, source)
        return task, named, codes
    if task == MULTI_LABEL:
        y = _split(_flags(labels, parts, source), parts)
        if never := [*map(str, np.flatnonzero(~y["train"].any(axis=0)))]:
            notes.leave_out(
                f"{len(never)} of {labels.shape[1]} labels that no training example has: "
                f"{first_of(never)}"
            )
        return DENSE_LABELS, None, y
    if labels.dtype.kind not in "fiubO":
        raise DataError(
            f"{source}: the label {labels.flat[0]!s} is not a number; regression needs one. Check "
            "--label."
        )
    with np.errstate(over="ignore"):  # it is infinite then
        rows = labels.astype(np.float32).reshape(len(labels), -1)
    if not (finite := np.isfinite(rows).all(axis=1)).all():
        row = int(np.argmin(finite))
        label = ", ".join(map(str, rows[row]))
        raise DataError(
            f"{source}: the label of {_example(row, parts)} is {label}; it must be finite. Remove "
            "such examples."
        )
    return task, None, {split: part.reshape(len(part), -1) for split, part in parts.items()}


def _require_one_kind(parts: Parts, labels: np.ndarray, source: str) -> None:
    """Raise DataError if training labels are classes by their type, and another split's are not."""
    train = parts.get("train")
    if train is not None and train.dtype.kind in "biu" and labels.dtype.kind == "f":
        odd, part = next((name, part) for name, part in parts.items() if part.dtype.kind == "f")
        raise DataError(
            f"{source}: train labels are {train.dtype}, and {odd} labels {part.dtype}. Give both "
            "one type, or "
            "--task classification or regression."
        )


MISSING = {"nan", "-nan", "na", "n/a", "#n/a", "<na>", "null"}
"""Texts, in lower case, that programs write for a missing value."""


def read_names(labels: np.ndarray, source: str, split: str) -> np.ndarray:
    """Return labels, with white space stripped from names. Raises DataError if a name is empty or
    not UTF-8."""
    what = f"{split} labels".strip()
    if labels.dtype.kind not in "SU":
        return labels
    if labels.dtype.kind == "S":
        try:
            labels = np.char.decode(labels, "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{source}: {what}: {error.object!r} is not UTF-8 text. Write names in UTF-8."
            ) from None
    names = np.char.strip(labels)
    if (empty := names == "").any():
        raise DataError(
            f"{source}: {what}: example {int(np.argmax(empty))} has an empty name. Name its class, "
            "or remove it."
        )
    missing = np.isin(np.char.lower(names), [*MISSING])
    if missing.any():
        row = int(np.argmax(missing))
        raise DataError(
            f"{source}: {what}: example {row} has the name {names[row]}, which programs write for "
            "a missing label. "
            "Remove such examples, or rename the class."
        )
    return names


def _classes(labels: np.ndarray, parts: Parts, source: str) -> tuple[tuple[str, ...], np.ndarray]:
    if labels.ndim == 2:
        if _task_of_matrix(labels)[0] != CLASSIFICATION:
            raise DataError(
                f"{source}: the labels are {labels.shape[1]} numbers per example, not a single 1 "
                "among zeros; "
                "classification needs one class. Give class numbers, or --task multi-label or "
                "regression."
            )
        return tuple(map(str, range(labels.shape[1]))), labels.argmax(axis=1)
    if labels.dtype.kind == "f":
        if not (whole := (np.abs(labels) < 2**53) & (labels == np.trunc(labels))).all():
            row = int(np.argmin(whole))
            raise DataError(
                f"{source}: the label of {_example(row, parts)} is {labels[row]}; a class must be "
                "a whole "
                "number or a name. Correct it, or predict numbers: --task regression."
            )
        labels = labels.astype(np.int64)
    values, y = np.unique(labels, return_inverse=True)
    return tuple(printable(str(value)) for value in values.tolist()), y


def _task_of_matrix(labels: np.ndarray) -> tuple[str, str]:
    if labels.dtype.kind not in "biufO" or not ((labels == 0) | (labels == 1)).all():
        return REGRESSION, "not all 0 or 1: treated as numbers to predict"
    if (np.count_nonzero(labels, axis=1) == 1).all():
        return CLASSIFICATION, "a single 1 in each: treated as classes"
    return MULTI_LABEL, "all 0 or 1: treated as several labels per example"


def _flags(labels: np.ndarray, parts: Parts, source: str) -> np.ndarray:
    if labels.ndim != 2:
        raise DataError(
            f"{source}: each example has one label; multi-label needs a matrix [n, k] of 0 and 1, "
            "k above 1. "
            "Leave --task out, or give classification."
        )
    if not (flags := (labels == 0) | (labels == 1)).all():
        row, column = np.argwhere(~flags)[0]
        raise DataError(
            f"{source}: {_example(int(row), parts)} has {labels[row, column].item()!r} for label "
            f"{column}; multi-label "
            "needs 0 or 1. Correct it, or predict numbers: --task regression."
        )
    return labels.astype(np.uint8)


def _joined(parts: Parts, source: str) -> np.ndarray:
    arrays = list(parts.values())
    kinds = {part.dtype.kind for part in arrays}
    if not kinds <= {*"biuf"} and kinds != {"U"}:
        types = ", ".join(str(part.dtype) for part in arrays)
        raise DataError(f"{source}: the labels are of {types}; give whole numbers or names.")
    if len({part.shape[1:] for part in arrays}) > 1:
        raise DataError(
            f"{source}: the labels of its splits differ in shape; give them the same shape."
        )
    if kinds <= {*"biu"} and np.result_type(*arrays).kind == "f":  # int64 and uint64
        arrays = [part.astype(object) for part in arrays]
    return np.concatenate(arrays)


def _example(row: int, parts: Parts) -> str:
    for split, part in parts.items():
        if row < len(part):
            return f"{split} example {row}".strip()
        row -= len(part)
    raise AssertionError(row)


def _split(y: np.ndarray, parts: Parts) -> Parts:
    return dict(zip(parts, np.split(y, np.cumsum([len(part) for part in parts.values()])[:-1])))


def _flat(labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
