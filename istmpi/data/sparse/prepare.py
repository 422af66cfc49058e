"""Sparse rows with any number of labels: the Extreme Classification Repository's format, or
svmlight (docs/data.md).

All rows are in memory, 8 bytes per value. Labels of rows to predict are ignored.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.dataset import WORDS, other_reading
from istmpi.data.decoder import Decoder, Notes
from istmpi.data.hdf5 import open_prepared
from istmpi.data.holdout import ONE_IN_FIVE, held_out
from istmpi.data.sparse.lines import MOST, Limits, Rows, read_lines
from istmpi.data.sparse.split import Ragged
from istmpi.data.writer import SUFFIXES, Material
from istmpi.errors import ConfigError, DataError
from istmpi.tasks import MULTI_LABEL, TASKS
from istmpi.units import counted

COUNTED_FROM = "counted_from"
TEXT = (".txt", ".svm", ".svmlight", ".libsvm")
ROW_LISTS = {"train": "(tr|trn|train)_?split", "test": "(tst|test)_?split"}
STEP = 4096


def read(archive: Archive, decoder: Decoder, *, counted_from: int | None = None) -> Material:
    """Read rows, but drop rows that lack features or labels, and labels that a row repeats."""
    if counted_from not in (None, 0, 1):
        raise ConfigError(f"counted_from is {counted_from}; it must be 0 or 1.")
    files = _find(archive)
    if "" in files:
        whole = _read(archive, decoder, {files.pop("")}, counted_from)[0]
        if files:
            masks = {
                split: _mask(archive, name, whole, decoder.notes) for split, name in files.items()
            }
            _require_apart(whole, masks, decoder.notes)
        else:
            decoder.split, test = f"of the rows {ONE_IN_FIVE}", held_out(len(whole))
            masks = {"train": ~test, "test": test}
        return _material(archive, {split: (whole, mask) for split, mask in masks.items()})
    sources = {rows.name: rows for rows in _read(archive, decoder, {*files.values()}, counted_from)}
    parts = {split: sources[name] for split, name in files.items()}
    return _material(
        archive, {split: (rows, np.ones(len(rows), bool)) for split, rows in parts.items()}
    )


def _find(archive: Archive) -> dict[str, str]:
    """Return the file of each split. Key ``""`` is a file of all rows; the files of splits then
    list row numbers."""
    names = [name for name in archive.names if name.lower().removesuffix(".gz").endswith(TEXT)]
    lists = {split: _named(names, pattern) for split, pattern in ROW_LISTS.items()}
    rest = [name for name in names if not any(name in listed for listed in lists.values())]
    by_split = {
        split: files for split, words in WORDS.items() if (files := _named(rest, "|".join(words)))
    }
    if any(lists.values()):
        data = rest if len(rest) == 1 else _named(rest, "data")
        if len(data) == 1 and all(len(files) == 1 for files in lists.values()):
            return {"": data[0], **{split: files[0] for split, files in lists.items()}}
    elif {"train", "test"} <= by_split.keys() and all(
        len(files) == 1 for files in by_split.values()
    ):
        return {split: files[0] for split, files in by_split.items()}
    elif len(rest) == 1:
        return {"": rest[0]}
    raise DataError(
        f"{archive.path} needs train.txt and test.txt, a file with NAME_trSplit.txt and "
        "NAME_tstSplit.txt, or "
        f"one file, but has: {', '.join(archive.names[:5])}."
    )


def _named(names: list[str], pattern: str) -> list[str]:
    stems = {
        name: name.lower().removesuffix(".gz").rpartition("/")[2].rpartition(".")[0]
        for name in names
    }
    return [name for name in names if re.search(f"(^|[^a-z])({pattern})($|[^a-z])", stems[name])]


def _read(
    archive: Archive, decoder: Decoder, names: set[str], counted_from: int | None
) -> list[Rows]:
    limits, notes, sources = Limits(), decoder.notes, []
    if counted_from is not None:
        limits = Limits(MOST - counted_from, first=counted_from)
    for stream in archive.streams(names):
        sources.append(read_lines(stream, limits))
        decoder.progress("reading", len(sources), len(names))
    bare = [rows for rows in sources if not rows.header]
    if counted_from is not None and not bare:
        raise ConfigError(
            "counted_from is for rows without a header; rows with a header count from 0. Leave it "
            "out."
        )
    if bare and counted_from is None:
        counted_from = int(all(rows.features.arrays[0].min(initial=1) for rows in bare))
        why = "feature 0 does not occur" if counted_from else "feature 0 occurs"
        commented = {rows.commented for rows in bare} - {None}
        if len(commented) > 1 or (commented == {1} and not counted_from):
            raise DataError(
                f"{bare[0].name}: comments say that features count from 1, but another file or "
                f"{why} says from 0. "
                "Give --counted-from 0 or 1."
            )
        if commented:
            counted_from, why = commented.pop(), "a comment says so"
        notes.assume(f"features are counted from {counted_from}: {why}", "--counted-from")
    notes.reading[COUNTED_FROM] = counted_from or 0
    for rows in sources:
        if rows.close is not None:
            raise DataError(
                f"{rows.name}: values of feature {rows.close} are too close together for the 24 "
                "bits of float32. "
                "Subtract a number from them first, or scale them."
            )
        if rows.queries:
            notes.leave_out(f"{counted(rows.queries, 'query number')} (qid:) of {rows.name}")
        if not rows.header:
            columns, values = rows.features.arrays
            rows.features = Ragged(rows.features.offsets, (columns - counted_from, values))
        if rows.blank_rows:
            notes.assume(
                f"{counted(rows.blank_rows, 'blank line')} of {rows.name}, counted as rows in its "
                "header"
            )
        elif rows.blank:
            notes.leave_out(f"{counted(rows.blank, 'line')} of {rows.name}, blank or a comment")
    return sources


def _sizes(rows: Rows) -> tuple[int, int]:
    if rows.header:
        return rows.header.features, rows.header.labels
    return tuple(int(lists.arrays[0].max(initial=-1)) + 1 for lists in (rows.features, rows.labels))


def _material(archive: Archive, parts: dict[str, tuple[Rows, np.ndarray]]) -> Material:
    sources = [*{rows.name: rows for rows, _ in parts.values()}.values()]
    for source in sources[1:]:
        here, first = (
            "{:,} features and {:,} labels".format(*_sizes(rows)) if rows.header else "no header"
            for rows in (source, sources[0])
        )
        if here != first:
            raise DataError(
                f"{source.name}, line 1 states {here}, but {sources[0].name} {first}. Give files "
                "that agree."
            )
    sizes = tuple(max(numbers) for numbers in zip(*map(_sizes, sources)))
    splits, seen, bare, unlabelled = {}, {}, 0, 0
    for split, (rows, chosen) in parts.items():
        lengths, label_lengths = (np.diff(lists.offsets) for lists in (rows.features, rows.labels))
        bare += int((chosen & (lengths == 0)).sum())
        unlabelled += int((chosen & (lengths > 0) & (label_lengths == 0)).sum())
        kept = np.flatnonzero(chosen & (lengths > 0) & (label_lengths > 0))
        if not len(kept):
            raise DataError(
                f"{rows.name}, line {rows.first_line}: no {split} row from there on has a feature "
                "and a "
                "label; at least one is required. Check the file."
            )
        splits[split] = rows.features.take(kept), rows.labels.take(kept)
        seen[split] = np.zeros(sizes[1], bool)
        seen[split][splits[split][1].arrays[0]] = True
        if not (seen[split] & seen["train"]).any():
            raise DataError(
                f"{rows.name}, line {rows.first_line}: no label of the {split} rows from there on "
                "occurs in "
                "training. Number labels alike in all files."
            )
    features, labels = (round(float(np.diff(lists.offsets).mean()), 2) for lists in splits["train"])
    facts = {"labels": sizes[1], "labels in training": int(seen["train"].sum())}
    facts |= {"features in a row of training": features, "labels in a row of training": labels}
    facts |= {"dropped rows without features": bare, "dropped rows without labels": unlabelled}
    facts["labels repeated in their row"] = sum(rows.repeated for rows in sources)
    return material_of(archive.source, *sizes, splits, facts)


def _mask(archive: Archive, name: str, source: Rows, notes: Notes) -> np.ndarray:
    rows, columns = [], 1
    with archive.stream(name) as stream:
        for line, text in enumerate(stream.lines(), 1):
            words = text.split()
            columns = max(columns, len(words))
            if words and not (words[0].isdigit() and int(words[0][:19]) > 0):
                raise DataError(
                    f"{name}, line {line} is not a row number (counted from 1). Correct the line."
                )
            rows += [int(word[:19]) - 1 for word in words[:1]]
            if words and rows[-1] >= len(source):
                raise DataError(
                    f"{name}, line {line}: there is no row {rows[-1] + 1:,}; {source.name} has "
                    f"{len(source):,}. Use the lists that belong to it."
                )
    if not rows:
        raise DataError(f"{name}, line 1: the file is empty. Give a file with row numbers.")
    if columns > 1:
        notes.assume(f"the split is the first of {columns} columns of {name}")
    mask = np.zeros(len(source), bool)
    mask[rows] = True
    return mask


def _require_apart(source: Rows, masks: dict[str, np.ndarray], notes: Notes) -> None:
    times = np.sum(list(masks.values()), axis=0)
    both, none = np.flatnonzero(times > 1) + 1, np.flatnonzero(times == 0) + 1
    if len(both):
        raise DataError(
            f"{source.name} has {counted(len(both), 'row')} that two lists name, such as row "
            f"{both[0]:,}. "
            "Remove it from one."
        )
    if len(none):
        notes.leave_out(
            f"{counted(len(none), 'row')} of {source.name} that no list names, such as row "
            f"{none[0]:,}"
        )


def material_of(
    source: str,
    features: int,
    outputs: int,
    splits: Mapping[str, tuple[Ragged, Ragged]],
    facts: Mapping[str, Any] | None = None,
) -> Material:
    attributes, datasets = {"shape": (features,)}, {}
    for split, (rows, labels) in splits.items():
        columns, values = rows.arrays
        attributes |= {f"{split}_values": len(values), f"{split}_labels": len(labels.arrays[0])}
        arrays = {
            "indptr": (rows.offsets, "<i8"),
            "indices": (columns, "<i4"),
            "data": (values, "<f4"),
        }
        arrays |= {
            "label_indptr": (labels.offsets, "<i8"),
            "label_indices": (labels.arrays[0], "<i4"),
        }
        datasets |= {
            f"{split}/{name}": np.ascontiguousarray(*array) for name, array in arrays.items()
        }
    counts = {split: len(rows) for split, (rows, _) in splits.items()}
    return Material(
        source,
        MULTI_LABEL,
        (features,),
        outputs,
        None,
        counts,
        attributes,
        datasets,
        facts=facts or {},
    )


def read_rows(
    source: str,
    features: int,
    split: str = "test",
    reading: Mapping[str, Any] = MappingProxyType({COUNTED_FROM: 0}),
    tell: Callable[[str], None] = lambda message: None,
) -> Iterator[Ragged]:
    """Yield the rows of a source in blocks, for a network that takes ``features`` features.

    A text file may lack header and labels. Features count from 0 if the file has a header,
    otherwise as in ``reading``. ``tell`` gets a message if the numbering is in doubt. Raises
    DataError.
    """
    path = Path(source)
    if not path.is_file():
        raise DataError(f"{path} is not a file. Give a file of sparse rows to predict.")
    if path.name.lower().endswith(SUFFIXES):
        rows, guards = _of_prepared(path, features, split, reading)
    else:
        rows, guards = _of_text(path, features, reading, tell), ()
    for start in range(0, len(rows), STEP):
        yield rows.take(np.arange(start, min(start + STEP, len(rows))), guards)


def _of_text(
    path: Path, features: int, reading: Mapping[str, Any], tell: Callable[[str], None]
) -> Ragged:
    archive, first = Archive(path), reading.get(COUNTED_FROM, 0)
    if len(archive.names) > 1:
        raise DataError(f"{path} holds {len(archive.names):,} files. Give a single file of rows.")
    with archive.stream(archive.names[0]) as stream:
        read = read_lines(stream, Limits(features, first=first))
    if read.header:
        _require(path, read.header.features, features)
        if first:
            tell(
                f"{path} has a header, so its features are counted from 0; the training data had "
                "no header and "
                "were counted from 1"
            )
        first = 0
    elif COUNTED_FROM not in reading:
        tell(
            f"features of {path} are counted from 0; the network does not record how its training "
            "data were counted"
        )
    columns, values = read.features.arrays
    return Ragged(read.features.offsets, (columns - first, values))


def _of_prepared(
    path: Path, features: int, split: str, reading: Mapping[str, Any]
) -> tuple[Ragged, tuple]:
    data = open_prepared(path)
    if not TASKS[data.task].ranks_labels:
        raise DataError(
            f"{path} is for {data.task}, but this network takes sparse rows. Give sparse rows."
        )
    _require(path, data.features, features)
    data.require_split(split, path)
    if differences := other_reading(data.reading, reading):
        raise DataError(
            f"{path}: {differences} in the network's training data. Prepare it with --counted-from."
        )
    return data.splits[split].rows, data.splits[split].guards


def _require(source: Path, given: int, features: int) -> None:
    if given != features:
        raise DataError(
            f"{source} has {given:,} features; the network takes {features:,}. Number features as "
            "in training."
        )
