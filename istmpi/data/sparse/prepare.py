"""Sparse rows with any number of labels: the Extreme Classification Repository's format, or
svmlight (docs/data.md).

All rows are in memory, 8 bytes per value.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.dataset import WORDS
from istmpi.data.decoder import Decoder, Notes
from istmpi.data.holdout import ONE_IN_FIVE, draw_test
from istmpi.data.sparse.lines import COUNTED_FROM, MOST, Limits, Rows, read_lines
from istmpi.data.sparse.split import Ragged
from istmpi.data.writer import Material
from istmpi.errors import ConfigError, DataError
from istmpi.tasks import MULTI_LABEL
from istmpi.units import counted

TEXT = (".txt", ".svm", ".svmlight", ".libsvm")
ROW_LISTS = {"train": "(tr|trn|train)_?split", "test": "(tst|test)_?split"}


def read(archive: Archive, decoder: Decoder, *, counted_from: int | None = None) -> Material:
    """Read rows, but drop rows that lack features or labels, and labels that a row repeats."""
    if counted_from not in (None, 0, 1):
        raise ConfigError(f"counted_from is {counted_from}; it must be 0 or 1.")
    files = _find_files(archive)
    if "" not in files:
        sources = {}
        # Each file is read once, in the order of a tar file.
        for rows in _read_files(archive, decoder, {*files.values()}, counted_from):
            sources[rows.name] = rows
        parts = {}
        for split, name in files.items():
            rows = sources[name]
            parts[split] = (rows, np.ones(len(rows), bool))
        return _collect(archive, parts)
    (whole,) = _read_files(archive, decoder, {files.pop("")}, counted_from)
    masks = {}
    for split, name in files.items():
        masks[split] = _read_mask(archive, name, whole, decoder.notes)
    if masks:
        _require_apart(whole, masks, decoder.notes)
    else:
        decoder.split = f"of the rows {ONE_IN_FIVE}"
        test = draw_test(len(whole))
        masks = {"train": ~test, "test": test}
    return _collect(archive, {split: (whole, mask) for split, mask in masks.items()})


def _find_files(archive: Archive) -> dict[str, str]:
    """Return the file of each split. Key ``""`` is a file of all rows; the files of splits then
    list row numbers."""
    names = [name for name in archive.names if name.lower().removesuffix(".gz").endswith(TEXT)]
    lists = {split: _choose_names(names, pattern) for split, pattern in ROW_LISTS.items()}
    listed = {name for files in lists.values() for name in files}
    rest = [name for name in names if name not in listed]
    by_split = {split: _choose_names(rest, "|".join(words)) for split, words in WORDS.items()}
    by_split = {split: files for split, files in by_split.items() if files}
    # The repository's sets have all rows in one file, and lists of the rows of a split.
    if listed:
        data = rest if len(rest) == 1 else _choose_names(rest, "data")
        if len(data) == 1 and _have_one_each(lists):
            return {"": data[0], **{split: files[0] for split, files in lists.items()}}
    elif {"train", "test"} <= by_split.keys() and _have_one_each(by_split):
        return {split: files[0] for split, files in by_split.items()}
    elif len(rest) == 1:
        return {"": rest[0]}
    raise DataError(
        f"{archive.path} needs train.txt and test.txt, a file with NAME_trSplit.txt and "
        f"NAME_tstSplit.txt, or one file, but has: {', '.join(archive.names[:5])}."
    )


def _have_one_each(files: Mapping[str, list[str]]) -> bool:
    return all(len(names) == 1 for names in files.values())


def _choose_names(names: list[str], pattern: str) -> list[str]:
    """Return the names that have a word of ``pattern`` before their ending."""
    word = re.compile(f"(^|[^a-z])({pattern})($|[^a-z])")
    chosen = []
    for name in names:
        stem, _, _ = name.lower().removesuffix(".gz").rpartition("/")[2].rpartition(".")
        if word.search(stem):
            chosen.append(name)
    return chosen


def _read_files(
    archive: Archive, decoder: Decoder, names: set[str], counted_from: int | None
) -> list[Rows]:
    """Return the rows of files, with features counted from 0."""
    limits = Limits()
    if counted_from is not None:
        limits = Limits(MOST - counted_from, first=counted_from)
    sources: list[Rows] = []
    for stream in archive.streams(names):
        sources.append(read_lines(stream, limits))
        decoder.progress("reading", len(sources), len(names))
    bare = [rows for rows in sources if not rows.header]
    if counted_from is not None and not bare:
        raise ConfigError(
            "counted_from is for rows without a header; rows with a header count from 0. Leave it "
            "out."
        )
    if counted_from is None:
        counted_from = _guess_first_number(bare, decoder.notes)
    decoder.notes.reading[COUNTED_FROM] = counted_from
    for rows in sources:
        _note_left_out(rows, decoder.notes)
        if not rows.header:
            columns, values = rows.features.arrays
            rows.features = Ragged(rows.features.offsets, (columns - counted_from, values))
    return sources


def _guess_first_number(bare: list[Rows], notes: Notes) -> int:
    """Return the number of the first feature, 0 or 1, in rows without a header."""
    if not bare:
        return 0
    # A file that counts from 0 uses its feature 0 almost always.
    first = int(all(rows.features.arrays[0].min(initial=1) for rows in bare))
    why = "feature 0 does not occur" if first else "feature 0 occurs"
    commented = {rows.commented for rows in bare if rows.commented is not None}
    if len(commented) > 1 or (commented == {1} and not first):
        raise DataError(
            f"{bare[0].name}: comments say that features count from 1, but another file or "
            f"{why} says from 0. Give --counted-from 0 or 1."
        )
    if commented:
        first = commented.pop()
        why = "a comment says so"
    notes.assume(f"features are counted from {first}: {why}", "--counted-from")
    return first


def _note_left_out(rows: Rows, notes: Notes) -> None:
    """Note what was left out of a file. Raises DataError for values too close together."""
    if rows.close is not None:
        raise DataError(
            f"{rows.name}: values of feature {rows.close} are too close together for the 24 "
            "bits of float32. Subtract a number from them first, or scale them."
        )
    if rows.queries:
        notes.leave_out(f"{counted(rows.queries, 'query number')} (qid:) of {rows.name}")
    if rows.blank_rows:
        notes.assume(
            f"{counted(rows.blank_rows, 'blank line')} of {rows.name}, counted as rows in its "
            "header"
        )
    elif rows.blank:
        notes.leave_out(f"{counted(rows.blank, 'line')} of {rows.name}, blank or a comment")


def _count_features(rows: Rows) -> int:
    if rows.header:
        return rows.header.features
    return int(rows.features.arrays[0].max(initial=-1)) + 1


def _count_labels(rows: Rows) -> int:
    if rows.header:
        return rows.header.labels
    return int(rows.labels.arrays[0].max(initial=-1)) + 1


def _collect(archive: Archive, parts: Mapping[str, tuple[Rows, np.ndarray]]) -> Material:
    """Return the content of a prepared file from each split's rows and a mask of the chosen ones.

    Rows that lack features or labels are dropped. Raises DataError for a split without rows, or
    without labels of training.
    """
    # A file may have the rows of several splits.
    sources = list({rows.name: rows for rows, _ in parts.values()}.values())
    _require_same_header(sources)
    count = max(map(_count_labels, sources))
    splits: dict[str, tuple[Ragged, Ragged]] = {}
    trained = np.zeros(count, bool)
    bare = 0
    unlabelled = 0
    for split, (rows, chosen) in parts.items():
        lengths = np.diff(rows.features.offsets)
        label_lengths = np.diff(rows.labels.offsets)
        bare += int((chosen & (lengths == 0)).sum())
        unlabelled += int((chosen & (lengths > 0) & (label_lengths == 0)).sum())
        # A row without features gives no input, one without labels no loss.
        kept = np.flatnonzero(chosen & (lengths > 0) & (label_lengths > 0))
        labels = rows.labels.take(kept)
        if split == "train":
            trained[labels.arrays[0]] = True
        # The first split is train, so that `trained` is complete for the others.
        _require_rows(split, rows, labels, trained)
        splits[split] = (rows.features.take(kept), labels)
    features, labels = splits["train"]
    facts = {
        "labels": count,
        "labels in training": int(trained.sum()),
        "features in a row of training": _round_mean_length(features),
        "labels in a row of training": _round_mean_length(labels),
        "dropped rows without features": bare,
        "dropped rows without labels": unlabelled,
        "labels repeated in their row": sum(rows.repeated for rows in sources),
    }
    width = max(map(_count_features, sources))
    return build_material(archive.source, width, count, splits, facts)


def _require_rows(split: str, rows: Rows, labels: Ragged, trained: np.ndarray) -> None:
    """Raise DataError if a split has no ``labels``, or none that is ``trained`` [labels]."""
    where = f"{rows.name}, line {rows.first_line}"
    if not len(labels):
        raise DataError(
            f"{where}: no {split} row from there on has a feature and a label; at least one is "
            "required. Check the file."
        )
    if not trained[labels.arrays[0]].any():
        raise DataError(
            f"{where}: no label of the {split} rows from there on occurs in training. Number "
            "labels alike in all files."
        )


def _round_mean_length(lists: Ragged) -> float:
    return round(float(np.diff(lists.offsets).mean()), 2)


def _require_same_header(sources: list[Rows]) -> None:
    """Raise DataError if the headers of files state different sizes."""
    first = sources[0]
    expected = _describe_header(first)
    for source in sources[1:]:
        words = _describe_header(source)
        if words != expected:
            raise DataError(
                f"{source.name}, line 1 states {words}, but {first.name} {expected}. Give files "
                "that agree."
            )


def _describe_header(rows: Rows) -> str:
    if not rows.header:
        return "no header"
    return f"{rows.header.features:,} features and {rows.header.labels:,} labels"


def _read_mask(archive: Archive, name: str, source: Rows, notes: Notes) -> np.ndarray:
    """Return a mask of the rows whose numbers a file lists."""
    rows = []
    columns = 1
    with archive.stream(name) as stream:
        for line, text in enumerate(stream.lines(), 1):
            words = text.split()
            if not words:
                continue
            columns = max(columns, len(words))
            # int() refuses very many digits.
            word = words[0][:19]
            if not words[0].isdigit() or int(word) == 0:
                raise DataError(
                    f"{name}, line {line} is not a row number (counted from 1). Correct the line."
                )
            rows.append(int(word) - 1)
            if rows[-1] >= len(source):
                raise DataError(
                    f"{name}, line {line}: there is no row {rows[-1] + 1:,}; {source.name} has "
                    f"{len(source):,}. Use the lists that belong to it."
                )
    if not rows:
        raise DataError(f"{name}, line 1: the file is empty. Give a file with row numbers.")
    # Some sets list several splits side by side, one in each column.
    if columns > 1:
        notes.assume(f"the split is the first of {columns} columns of {name}")
    mask = np.zeros(len(source), bool)
    mask[rows] = True
    return mask


def _require_apart(source: Rows, masks: dict[str, np.ndarray], notes: Notes) -> None:
    times = np.sum(list(masks.values()), axis=0)
    both = np.flatnonzero(times > 1) + 1
    if len(both):
        raise DataError(
            f"{source.name} has {counted(len(both), 'row')} that two lists name, such as row "
            f"{both[0]:,}. Remove it from one."
        )
    none = np.flatnonzero(times == 0) + 1
    if len(none):
        notes.leave_out(
            f"{counted(len(none), 'row')} of {source.name} that no list names, such as row "
            f"{none[0]:,}"
        )


def build_material(
    source: str,
    features: int,
    outputs: int,
    splits: Mapping[str, tuple[Ragged, Ragged]],
    facts: Mapping[str, Any] | None = None,
) -> Material:
    """Return the content of a prepared file; ``splits`` has rows and their labels."""
    attributes: dict[str, Any] = {"shape": (features,)}
    datasets: dict[str, np.ndarray] = {}
    for split, (rows, labels) in splits.items():
        columns, values = rows.arrays
        attributes[f"{split}_values"] = len(values)
        attributes[f"{split}_labels"] = len(labels.arrays[0])
        # The types are those of the format (docs/formats.md).
        datasets[f"{split}/indptr"] = np.ascontiguousarray(rows.offsets, "<i8")
        datasets[f"{split}/indices"] = np.ascontiguousarray(columns, "<i4")
        datasets[f"{split}/data"] = np.ascontiguousarray(values, "<f4")
        datasets[f"{split}/label_indptr"] = np.ascontiguousarray(labels.offsets, "<i8")
        datasets[f"{split}/label_indices"] = np.ascontiguousarray(labels.arrays[0], "<i4")
    return Material(
        source=source,
        task=MULTI_LABEL,
        shape=(features,),
        outputs=outputs,
        classes=None,
        counts={split: len(rows) for split, (rows, _) in splits.items()},
        attributes=attributes,
        datasets=datasets,
        facts=facts or {},
    )
