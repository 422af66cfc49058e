"""Finds out what labels mean: classes, several labels per example, or numbers to predict."""

import numpy as np

from istmpi.data.class_list import require_listed, require_several, require_trained
from istmpi.data.decoder import Notes, list_first
from istmpi.errors import ConfigError, DataError, did_you_mean
from istmpi.foreign import printable
from istmpi.tasks import CLASSIFICATION, DENSE_LABELS, MULTI_LABEL, REGRESSION

_TASK = "--task"
_TASKS = (CLASSIFICATION, REGRESSION, MULTI_LABEL)
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
    if task is not None and task not in _TASKS:
        raise ConfigError(f"task {task!r} does not exist{did_you_mean(task, _TASKS)}")
    notes = notes or Notes()
    parts = {split: read_names(_flatten(part), source, split) for split, part in parts.items()}
    labels = _join(parts, source)
    if not len(labels):
        raise DataError(f"{source} has no train examples; a data set needs at least one.")
    if task is None:
        task = _guess_task(labels, parts, source, notes)
    if task == CLASSIFICATION:
        names, codes = _number_classes(labels, parts, source, classes, cure)
        return task, names, codes
    if task == MULTI_LABEL:
        all_flags = _read_flags(labels, parts, source)
        flags = _split(all_flags, parts)
        # Without splits, these are the labels that no example has.
        _note_absent(flags.get("train", all_flags), notes)
        return DENSE_LABELS, None, flags
    _require_finite(labels, parts, source)
    return task, None, {split: part.reshape(len(part), -1) for split, part in parts.items()}


def _guess_task(labels: np.ndarray, parts: Parts, source: str, notes: Notes) -> str:
    """Return the task that the labels suggest, with a note if they could be of another."""
    if labels.ndim == 2:
        task, why = _guess_task_of_matrix(labels)
        notes.assume(f"{labels.shape[0]:,} rows of {labels.shape[1]} labels, {why}", _TASK)
        return task
    # Joined whole numbers and floats are floats, which would hide the difference.
    _require_one_kind(parts, labels, source)
    task = REGRESSION if labels.dtype.kind == "f" else CLASSIFICATION
    is_number = labels.dtype.kind in "iufO"
    if is_number and (task == CLASSIFICATION or (labels == np.trunc(labels)).all()):
        count = len(np.unique(labels))
        meaning = "numbers to predict" if task == REGRESSION else "classes"
        notes.assume(
            f"{len(labels):,} labels are whole numbers of {count:,} values: treated as {meaning}",
            _TASK,
        )
    return task


def _note_absent(flags: np.ndarray, notes: Notes) -> None:
    """Note the labels that no training example has; ``flags`` is [n, labels]."""
    absent = [str(label) for label in np.flatnonzero(~flags.any(axis=0))]
    if absent:
        notes.leave_out(
            f"{len(absent)} of {flags.shape[1]} labels that no training example has: "
            f"{list_first(absent)}"
        )


def _number_classes(
    labels: np.ndarray, parts: Parts, source: str, classes: tuple[str, ...] | None, cure: str
) -> tuple[tuple[str, ...], Parts]:
    """Return the names of the classes, and the class number of each example by split."""
    names, y = _find_classes(labels, parts, source)
    codes = _split(y.reshape(-1).astype(np.int64), parts)
    if classes is not None:
        require_listed(names, classes, source)
        # The user's order decides, so that several sites have the same numbers.
        numbers = np.array([classes.index(name) for name in names], np.int64)
        return classes, {split: numbers[part] for split, part in codes.items()}
    require_several(names, source, cure)
    # Without splits one is drawn by class, so each class is in training.
    if "train" in codes:
        trained = {names[code] for code in np.unique(codes["train"])}
        for split, part in codes.items():
            require_trained(trained, [names[code] for code in np.unique(part)], split, source)
    return names, codes


def _require_finite(labels: np.ndarray, parts: Parts, source: str) -> None:
    """Raise DataError unless labels are numbers that are finite in float32."""
    if labels.dtype.kind not in "fiubO":
        raise DataError(
            f"{source}: the label {labels.flat[0]!s} is not a number; regression needs one. Check "
            "--label."
        )
    # A number above the largest of float32 becomes infinite.
    with np.errstate(over="ignore"):
        rows = labels.astype(np.float32).reshape(len(labels), -1)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        label = ", ".join(map(str, rows[row]))
        raise DataError(
            f"{source}: the label of {_name_example(row, parts)} is {label}; it must be finite. "
            "Remove such examples."
        )


def _require_one_kind(parts: Parts, labels: np.ndarray, source: str) -> None:
    """Raise DataError if training labels are classes by their type, and another split's are not."""
    train = parts.get("train")
    if train is None or train.dtype.kind not in "biu" or labels.dtype.kind != "f":
        return
    for split, part in parts.items():
        if part.dtype.kind == "f":
            raise DataError(
                f"{source}: train labels are {train.dtype}, and {split} labels {part.dtype}. Give "
                "both one type, or --task classification or regression."
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
    empty = names == ""
    if empty.any():
        raise DataError(
            f"{source}: {what}: example {int(np.argmax(empty))} has an empty name. Name its class, "
            "or remove it."
        )
    # A class "nan" is most often an empty cell of a table.
    missing = np.isin(np.char.lower(names), [*MISSING])
    if missing.any():
        row = int(np.argmax(missing))
        raise DataError(
            f"{source}: {what}: example {row} has the name {names[row]}, which programs write for "
            "a missing label. Remove such examples, or rename the class."
        )
    return names


def _find_classes(
    labels: np.ndarray, parts: Parts, source: str
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of the labels' classes, and the number of each label's class."""
    if labels.ndim == 2:
        task, _ = _guess_task_of_matrix(labels)
        if task != CLASSIFICATION:
            raise DataError(
                f"{source}: the labels are {labels.shape[1]} numbers per example, not a single 1 "
                "among zeros; classification needs one class. Give class numbers, or --task "
                "multi-label or regression."
            )
        return tuple(map(str, range(labels.shape[1]))), labels.argmax(axis=1)
    if labels.dtype.kind == "f":
        # From 2**53 on, float64 cannot tell a whole number from the next.
        whole = (np.abs(labels) < 2**53) & (labels == np.trunc(labels))
        if not whole.all():
            row = int(np.argmin(whole))
            raise DataError(
                f"{source}: the label of {_name_example(row, parts)} is {labels[row]}; a class "
                "must be a whole number or a name. Correct it, or predict numbers: --task "
                "regression."
            )
        labels = labels.astype(np.int64)
    values, y = np.unique(labels, return_inverse=True)
    return tuple(printable(str(value)) for value in values.tolist()), y


def _guess_task_of_matrix(labels: np.ndarray) -> tuple[str, str]:
    if labels.dtype.kind not in "biufO" or not ((labels == 0) | (labels == 1)).all():
        return REGRESSION, "not all 0 or 1: treated as numbers to predict"
    if (np.count_nonzero(labels, axis=1) == 1).all():
        return CLASSIFICATION, "a single 1 in each: treated as classes"
    return MULTI_LABEL, "all 0 or 1: treated as several labels per example"


def _read_flags(labels: np.ndarray, parts: Parts, source: str) -> np.ndarray:
    """Return several labels of each example, ``[n, labels]`` uint8, or raise DataError."""
    if labels.ndim != 2:
        raise DataError(
            f"{source}: each example has one label; multi-label needs a matrix [n, k] of 0 and 1, "
            "k above 1. Leave --task out, or give classification."
        )
    flags = (labels == 0) | (labels == 1)
    if not flags.all():
        row, column = np.argwhere(~flags)[0]
        raise DataError(
            f"{source}: {_name_example(int(row), parts)} has {labels[row, column].item()!r} for "
            f"label {column}; multi-label needs 0 or 1. Correct it, or predict numbers: --task "
            "regression."
        )
    return labels.astype(np.uint8)


def _join(parts: Parts, source: str) -> np.ndarray:
    """Return the labels of all parts, one behind the other. Raises DataError for mixed labels."""
    arrays = list(parts.values())
    kinds = {part.dtype.kind for part in arrays}
    if not kinds <= {*"biuf"} and kinds != {"U"}:
        types = ", ".join(str(part.dtype) for part in arrays)
        raise DataError(f"{source}: the labels are of {types}; give whole numbers or names.")
    if len({part.shape[1:] for part in arrays}) > 1:
        raise DataError(
            f"{source}: the labels of its splits differ in shape; give them the same shape."
        )
    # int64 and uint64 together would become float64, which rounds large numbers.
    if kinds <= {*"biu"} and np.result_type(*arrays).kind == "f":
        arrays = [part.astype(object) for part in arrays]
    return np.concatenate(arrays)


def _name_example(row: int, parts: Parts) -> str:
    """Name the example in ``row`` of all parts, joined in their order."""
    for split, part in parts.items():
        if row < len(part):
            return f"{split} example {row}".strip()
        row -= len(part)
    raise AssertionError(row)


def _split(y: np.ndarray, parts: Parts) -> Parts:
    """Cut what belongs to all parts, joined in their order, into the parts again."""
    ends = np.cumsum([len(part) for part in parts.values()])
    return dict(zip(parts, np.split(y, ends[:-1])))


def _flatten(labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    # A single column is one label for each example.
    if labels.ndim == 2 and labels.shape[1] == 1:
        return labels[:, 0]
    return labels
