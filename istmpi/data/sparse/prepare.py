"""Sparse rows with any number of labels: the Extreme Classification Repository's format, svmlight, or CSR in .npz.

    train.txt test.txt               a header ROWS FEATURES LABELS, then ``label,label feature:value ...`` from 0 on
    data.txt NAME_trSplit.txt NAME_tstSplit.txt      one file, and the numbers from 1 of its rows in each split
    train.svm test.svm               the same rows without a header
    trn_X_Xf.npz trn_X_Y.npz tst_X_Xf.npz tst_X_Y.npz      as scipy.sparse.save_npz writes them; or train_x, train_y

All but .npz is read once, in pieces, into nameless files beside the target; so memory does not grow with the data but
for some bytes a row where one file is split.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from istmpi.data.dataset import WORDS
from istmpi.data.files.archive import Archive
from istmpi.data.files.decoder import Decoder
from istmpi.data.files.layout import note_splits
from istmpi.data.files.notes import Notes
from istmpi.data.holdout import ONE_IN_FIVE, held_out
from istmpi.data.sparse.csr import Csr, OfArrays, Stored
from istmpi.data.sparse.file import Facts, material_of
from istmpi.data.sparse.lines import MOST, Limits, blocks_of_lines, count_of
from istmpi.data.sparse.split import Ragged
from istmpi.data.writer import Material
from istmpi.errors import ConfigError, DataError
from istmpi.units import counted

COUNTED_FROM = "counted_from"
"""The convention on the number of the first feature in rows without a header."""
TEXT = (".txt", ".svm", ".svmlight", ".libsvm", ".dat", ".data")
PATTERNS = {split: "|".join(words) for split, words in WORDS.items()}
ROW_LISTS = {"train": "(tr|trn|train)_?split", "test": "(tst|test)_?split"}


@dataclass(frozen=True)
class Part:
    """The rows of a split: those of a source, or these of them."""

    source: Csr
    rows: np.ndarray | None = None

    def blocks(self) -> Iterator[tuple[Ragged, Ragged, int, int]]:
        """Yield features and labels of rows that have both, and the numbers of rows without features, and without
        labels."""
        start = 0
        for features, labels in self.source.blocks():
            count = len(features)
            chosen = np.ones(count, bool) if self.rows is None else self.rows[start : start + count]
            start += count
            bare, unlabelled = (np.diff(lists.offsets) == 0 for lists in (features, labels))
            kept = np.flatnonzero(chosen & ~bare & ~unlabelled)
            dropped = int((chosen & bare).sum()), int((chosen & ~bare & unlabelled).sum())
            yield features.take(kept), labels.take(kept), *dropped


def read(archive: Archive, decoder: Decoder, *, counted_from: int | None = None) -> Material:
    """Rows that have a feature and a label; the others are dropped and counted, as are labels that a row repeats.

    Without a header there are as many features and labels as the largest number says, and features are counted from 1
    unless there is a 0; ``counted_from`` decides otherwise.
    """
    if counted_from not in (None, 0, 1):
        raise ConfigError(f"counted_from is {counted_from}; it must be 0 or 1.")
    arrays = [name for name in archive.names if name.lower().endswith(".npz")]
    if arrays and counted_from is not None:
        raise ConfigError("counted_from is for rows of text; a matrix counts from 0. Leave it out.")
    decoder.notes.reading[COUNTED_FROM] = 0
    if arrays:
        parts = {split: Part(OfArrays(archive, *pair)) for split, pair in _pairs(archive, arrays).items()}
    else:
        parts = _of_text(archive, decoder, counted_from)
    sources = list({id(part.source): part.source for part in parts.values()}.values())
    for source in sources[1:]:
        here, first = ((rows.features, rows.labels) if rows.header else None for rows in (source, sources[0]))
        if here != first:
            says = [
                "no header" if sizes is None else "{:,} features and {:,} labels".format(*sizes)
                for sizes in (here, first)
            ]
            raise DataError(
                f"{source.name}, line 1: it says {says[0]}, but {sources[0].name} {says[1]}. Give files that agree."
            )
    return _material(archive, parts, sources)


def _material(archive: Archive, parts: dict[str, Part], sources: list[Csr]) -> Material:
    """Return the rows of all parts, which are gone through once to count them."""
    sizes = max(source.features for source in sources), max(source.labels for source in sources)
    counts, values, labels, dropped = {}, {}, {}, np.zeros(2, np.int64)
    seen = {split: np.zeros(sizes[1], bool) for split in parts}
    for split, part in parts.items():
        totals = np.zeros(3, np.int64)
        for rows, targets, *without in part.blocks():
            totals += len(rows), rows.offsets[-1], targets.offsets[-1]
            dropped += without
            seen[split][targets.arrays[0]] = True
        counts[split], values[split], labels[split] = totals.tolist()
        if not counts[split]:
            raise DataError(
                f"{part.source.name}, line {part.source.first_line}: it has no {split} row with a feature and a label "
                f"from there on; a data set needs at least one. Check the file."
            )
    for split, part in parts.items():
        if not (seen[split] & seen["train"]).any():
            raise DataError(
                f"{part.source.name}, line {part.source.first_line}: none of the labels of the {split} rows from there "
                f"on occurs in training. Are they numbered alike in all files?"
            )
    rates = values["train"] / counts["train"], labels["train"] / counts["train"]
    repeated = sum(source.repeated for source in sources)
    facts = Facts(sizes[1], int(seen["train"].sum()), *rates, *dropped.tolist(), repeated)
    blocks = ((split, rows, targets) for split, part in parts.items() for rows, targets, *_ in part.blocks())
    return material_of(archive.source, *sizes, counts, values, labels, facts, blocks)


def _of_text(archive: Archive, decoder: Decoder, counted_from: int | None) -> dict[str, Part]:
    names = [name for name in archive.names if _plain_name(name).endswith(TEXT)]
    lists = {split: _named(names, pattern) for split, pattern in ROW_LISTS.items()}
    rest = [name for name in names if not any(name in listed for listed in lists.values())]
    by_split = {split: files for split, pattern in PATTERNS.items() if (files := _named(rest, pattern))}
    whole: dict[str, str] = {}
    if any(lists.values()):
        data = rest if len(rest) == 1 else [name for name in rest if re.search("data", _stem(name))]
        if len(data) == 1 and all(len(files) == 1 for files in lists.values()):
            whole = {"": data[0], **{split: files[0] for split, files in lists.items()}}
    elif {"train", "test"} <= by_split.keys() and all(len(files) == 1 for files in by_split.values()):
        whole = {split: files[0] for split, files in by_split.items()}
    elif len(rest) == 1:
        whole = {"": rest[0]}
    if not whole:
        held = ", ".join(archive.names[:5])
        raise DataError(
            f"{archive.path}: needed are train.txt and test.txt, one file with NAME_trSplit.txt and NAME_tstSplit.txt, "
            f"or one file; found: {held}."
        )
    if "" not in whole:
        sources = _stored(archive, decoder, set(whole.values()), counted_from)
        note_splits(decoder.notes, {name.rpartition("/")[2]: split for split, name in whole.items()})
        return {split: Part(sources[name]) for split, name in whole.items()}
    source = _stored(archive, decoder, {whole[""]}, counted_from)[whole.pop("")]
    if whole:
        return {split: Part(source, mask) for split, mask in _masks(archive, source, whole, decoder.notes).items()}
    decoder.split = f"of the rows {ONE_IN_FIVE}"
    test = held_out(len(source))
    return {"train": Part(source, ~test), "test": Part(source, test)}


def _stored(archive: Archive, decoder: Decoder, names: set[str], counted_from: int | None) -> dict[str, Stored]:
    total, before, stored, notes = sum(map(archive.nbytes, names)), 0, {}, decoder.notes
    limits = Limits() if counted_from is None else Limits(MOST - counted_from, first=counted_from)

    def tell(position: int) -> None:
        decoder.progress("reading", before + position, total)

    for name, pieces in archive.pieces(names, tell):
        stored[name] = Stored(name, decoder)
        stored[name].fill(pieces, limits)
        before += archive.nbytes(name)
    plain = [rows for rows in stored.values() if not rows.header]
    if counted_from is not None and not plain:
        raise ConfigError("counted_from is for rows without a header; those with one count from 0. Leave it out.")
    if plain and counted_from is None:
        counted_from = int(all(rows.least for rows in plain))
        has = "no feature has the number 0" if counted_from else "a feature has this number"
        notes.assume(f"features are counted from {counted_from}: {has}", "--counted-from")
    for rows in plain:
        rows.counted_from = counted_from
        notes.assume(f"{rows.name}: {rows.features:,} features, {rows.labels:,} labels, as its largest numbers say")
    notes.reading[COUNTED_FROM] = counted_from or 0
    for rows in stored.values():
        if rows.blank_rows:
            notes.assume(f"{counted(rows.blank_rows, 'blank line')} of {rows.name}, each a row in its header's count")
        elif blank := rows.lines.blank + rows.lines.trailing:
            notes.leave_out(f"{counted(blank, 'line')} of {rows.name}, blank or a comment")
        if rows.passed_over:
            notes.leave_out(f"{counted(rows.passed_over, 'number')} of queries (qid) of {rows.name}")
    return stored


def _pairs(archive: Archive, names: list[str]) -> dict[str, tuple[str, str]]:
    pairs = {}
    for split, pattern in PATTERNS.items():
        of_split = _named(names, pattern)
        targets = [name for name in of_split if re.search("(^|[^a-z])(y|labels?)$", _stem(name))]
        others = [name for name in of_split if name not in targets]
        if len(targets) == len(others) == 1:
            pairs[split] = others[0], targets[0]
    if not {"train", "test"} <= pairs.keys():
        raise DataError(
            f"{archive.path}: needed are train_x.npz, train_y.npz, test_x.npz and test_y.npz, or the names of the "
            f"Extreme Classification Repository (trn_X_Xf.npz, trn_X_Y.npz, ...); found: {', '.join(names[:6])}."
        )
    return pairs


def _plain_name(name: str) -> str:
    return name.lower().removesuffix(".gz")


def _stem(name: str) -> str:
    return _plain_name(name).rpartition("/")[2].rpartition(".")[0]


def _named(names: list[str], pattern: str) -> list[str]:
    return [name for name in names if re.search(f"(^|[^a-z])({pattern})($|[^a-z])", _stem(name))]


def _masks(archive: Archive, source: Csr, lists: dict[str, str], notes: Notes) -> dict[str, np.ndarray]:
    """Return the rows of each split, ``[rows]`` bool, by its list's name."""
    masks = {}
    for split, name in lists.items():
        rows = _row_list(archive, name, notes)
        if (last := int(rows.max())) >= len(source):
            raise DataError(
                f"{name}, line {int(rows.argmax()) + 1}: there is no row {last + 1:,}; {source.name} has "
                f"{len(source):,}. Take the lists that belong to it."
            )
        masks[split] = np.zeros(len(source), bool)
        masks[split][rows] = True
    times = np.sum(list(masks.values()), axis=0)
    both, none = np.flatnonzero(times > 1) + 1, np.flatnonzero(times == 0) + 1
    if len(both):
        raise DataError(
            f"{archive.path}: {source.name} has {counted(len(both), 'row')} that two lists name, such as row "
            f"{both[0]:,}. Take it out of one."
        )
    if len(none):
        notes.leave_out(f"{counted(len(none), 'row')} of {source.name} that no list names, such as row {none[0]:,}")
    return masks


def _row_list(archive: Archive, name: str, notes: Notes) -> np.ndarray:
    """Return the rows that a list names, from 0; of several columns, each another split, the first."""
    rows, line, columns = [], 1, 1
    for _, pieces in archive.pieces({name}):
        for block in blocks_of_lines(name, pieces):
            for number, text in enumerate(block.split(b"\n")[:-1], line):
                words = text.split()
                word, columns = words[:1], max(columns, len(words))
                if word and not (word[0].isdigit() and 1 <= count_of(word[0]) < 2**62):
                    raise DataError(f"{name}, line {number}: needed is the number of a row, from 1. Correct the line.")
                rows += [count_of(digits) - 1 for digits in word]
            line += block.count(b"\n")
    if not rows:
        raise DataError(f"{name}, line 1: it names no rows: the file is empty. Give one with numbers of rows.")
    if columns > 1:
        notes.assume(f"the first of the {columns} columns of {name} is the split")
    if again := len(rows) - len(set(rows)):
        notes.leave_out(f"{counted(again, 'line')} of {name} with a row that it has already")
    return np.array(rows)
