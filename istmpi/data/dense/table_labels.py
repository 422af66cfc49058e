"""Finds out what the labels of a table are: names, whole numbers or numbers to predict."""

import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from istmpi.data.decoder import Notes, list_first
from istmpi.data.labels import ONE_CLASS
from istmpi.errors import DataError, did_you_mean
from istmpi.foreign import is_number, is_whole_number, number, one_line
from istmpi.tasks import CLASSIFICATION

FEW = 100
"""Whole-number labels with at most this many different values are classes."""
NAMED = 5
"""The number of fields that a message shows."""
EXACT = 2**53
"""The largest number up to which float64 keeps all whole numbers."""
LABEL_NAMES = {"label", "labels", "target", "class"}


def require_number(text: str, where: str, may_be_header: bool) -> None:
    if is_number(text):
        return
    cure = "Encode, fill or drop it (istmpi prepare csv --categories, --missing, --drop)"
    if may_be_header:
        cure += "; if the line is a header, give --header yes"
    raise DataError(
        f"{where}: {one_line(text)!r} is not a number; features must be numbers with a decimal "
        f"point. {cure}."
    )


def require_exact(text: str, where: str) -> None:
    if is_whole_number(text.strip()) and int(text) != int(float(text)):
        raise DataError(
            f"{where}: {one_line(text.strip())} has more digits than a float64 keeps, so close "
            "values would be equal. Subtract a number from its column, or divide it, first."
        )


def require_different(
    labels: Mapping[str, np.ndarray], names: Sequence[str], source: str, cure: str
) -> None:
    """Raise DataError if the labels are all equal, and a feature's name is that of labels."""
    if LABEL_NAMES & {*names} and all(len(np.unique(y)) == 1 for y in labels.values()):
        raise DataError(f"{source}: all labels are equal. {cure}")


def suggest_cure(names: list[str] | None, raw: dict[str, list[str]], guessed: bool) -> str:
    """Return the cure for labels that are all equal. ``guessed``: True if the last column was taken
    for the labels."""
    texts = sorted({text for labels in raw.values() for text in labels})
    # The last column is a guess, and a name such as "label" is a better one.
    named = [name for name in names or () if name.lower() in LABEL_NAMES]
    if named and guessed:
        return f"The labels may be in the column {named[0]}: --label {named[0]}."
    if len(texts) > 1:
        shown = list_first(texts, NAMED)
        return f"The labels {shown} are one number. Write codes as names, such as c{texts[0]}."
    return ONE_CLASS


def choose_label_type(
    raw: dict[str, list[str]], task: str | None, notes: Notes, source: str
) -> dict[str, np.ndarray]:
    """Return labels as names, whole numbers or floats, which tells `read_labels` their task."""
    texts = Counter(text for labels in raw.values() for text in labels)
    names = [text for text in texts if not is_number(text)]
    total = texts.total()
    dtype: type[np.generic]
    if names:
        dtype = np.str_
        # Each number would be a class of its own.
        if task != CLASSIFICATION and all(is_number(text.replace(",", ".", 1)) for text in texts):
            raise DataError(
                f"{source}: the label {one_line(names[0])!r} has a decimal comma. Use a decimal "
                "point, or give --task classification."
            )
        _note_alike(names, notes)
        count = sum(texts[name] for name in names)
        reason = f"{count:,} of {total:,} labels are not numbers (such as "
        reason += f"{one_line(names[0])!r}), so all are classes"
    elif all(map(is_whole_number, texts)):
        dtype, words = _choose_type_of_whole_numbers([*texts], task, notes, source)
        reason = f"{total:,} labels have {len(texts):,} different whole numbers, {words}"
    else:
        dtype = np.float64
        _require_floats_in_training({*raw.get("train", ())}, texts, task, source)
        are_whole = all(number(text).is_integer() for text in texts)
        what = "whole, with decimal points" if are_whole else "not all whole"
        reason = f"{total:,} labels have {len(texts):,} different numbers, {what}, so they are "
        reason += "numbers to predict"
    if task is None and len(names) < len(texts):
        notes.assume(reason, "--task")
    return {split: np.array(labels).astype(dtype) for split, labels in raw.items()}


def _note_alike(names: Sequence[str], notes: Notes) -> None:
    """Note names of classes that a reader may take for one: "no" and "No"."""
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(unicodedata.normalize("NFKC", name).casefold(), []).append(name)
    several = [alike for alike in spellings.values() if len(alike) > 1]
    if several:
        shown = list_first(sorted(map(one_line, several[0])), NAMED)
        notes.assume(
            f"the labels {shown} differ only in case or in how letters are coded, and are "
            "different classes"
        )


def _choose_type_of_whole_numbers(
    texts: list[str], task: str | None, notes: Notes, source: str
) -> tuple[type[np.generic], str]:
    """Return the type of labels that are whole numbers, and what they are taken for, in words."""
    spellings: dict[int, list[str]] = {}
    for text in texts:
        spellings.setdefault(int(text), []).append(text)
    # "1" and "01" are one number, but might be two codes.
    several = [alike for alike in spellings.values() if len(alike) > 1]
    if several:
        notes.assume(f"the labels {list_first(sorted(several[0]), NAMED)} are one number")
    few = len(spellings) <= FEW
    words = f"more than {FEW}, so they are numbers to predict"
    if few:
        words = f"at most {FEW}, so they are classes"
    if task == CLASSIFICATION or (task is None and few):
        # Longer codes stay texts, for int64 cannot hold them.
        if all(abs(value) < 2**63 for value in spellings):
            return np.int64, words
        return np.str_, words
    for text in texts:
        require_exact(text, f"{source}: the label")
    return np.float64, words


def _require_floats_in_training(
    train: Collection[str], texts: Collection[str], task: str | None, source: str
) -> None:
    """Raise DataError if training labels are few whole numbers, and another split's are not."""
    if task is None and train and all(map(is_whole_number, train)) and len(train) <= FEW:
        other = next(text for text in texts if not is_whole_number(text))
        raise DataError(
            f"{source}: train labels are whole numbers, such as {min(train)}, but the label "
            f"{other} of another split has a decimal point. Write labels alike, or give --task "
            "classification or regression."
        )


def find_label(name: str, first: list[str], label: str | None) -> int | None:
    """Return the place of the column ``label``, a name or a number, in the first line; None for
    None."""
    if label is None:
        return None
    label = label.strip()
    if len(first) < 2:
        raise DataError(
            f"{name}: the first line has {len(first)} column{'s' * (len(first) != 1)}; it needs "
            "features and a label. Set --delimiter."
        )
    if is_whole_number(label) and -len(first) <= int(label) < len(first):
        return int(label) % len(first)  # -1 is the last one
    if first.count(label) > 1:
        raise DataError(
            f"{name}: several columns are called {label!r}; give the number of one, from 0."
        )
    if label in first:
        return first.index(label)
    if is_whole_number(label):
        raise DataError(
            f"{name} has {len(first)} columns, counted from 0; there is no column {label}."
        )
    raise DataError(f"{name} has no column {label}{did_you_mean(label, first)}")


def require_one_column(
    name: str, header: Sequence[str], label: str | None, place: int | None
) -> None:
    """Raise DataError if ``label`` is the number of the column at ``place`` and another's name."""
    if label is None or place is None:
        return
    label = label.strip()
    if label in header and header[place] != label:
        raise DataError(
            f"{name}: --label {label} is the number of the column {header[place]}, but column "
            f"{header.index(label)} is called {label}. Rename that column."
        )


def name_label(header: Sequence[str], place: int | None) -> str:
    """Return the name of the labels' column; empty without labels."""
    if place is None:
        return ""
    return header[place]


def name_place(table: str, line: int, column: int, header: Sequence[str] | None) -> str:
    """Return the place of a field for messages; without a header, columns count from 0."""
    if header is None:
        return f"{table}, line {line}, column {column} (the first is 0)"
    return f"{table}, line {line}, column {header[column]}"


def read_label_column(name: str, block: Sequence[tuple[int, list[str]]], place: int) -> list[str]:
    """Return the labels of a block. Raises DataError for a missing one."""
    labels = []
    for line, row in block:
        label = row[place].strip()
        if not label:
            raise DataError(
                f"{name}, line {line} has no label. Add it or remove the line; a delimiter at "
                "the end of a line starts another column."
            )
        labels.append(label)
    return labels
