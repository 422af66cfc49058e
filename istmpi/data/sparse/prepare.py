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
from pathlib import Path

import numpy as np

from istmpi.data.files.archive import Archive
from istmpi.data.files.decoder import Decoder
from istmpi.data.files.layout import SPLITS, note_splits
from istmpi.data.files.notes import Notes
from istmpi.data.holdout import ONE_IN_FIVE, held_out
from istmpi.data.sparse.csr import Csr, OfArrays, Stored
from istmpi.data.sparse.file import SparseHeader, SparseWriter
from istmpi.data.sparse.lines import MOST, Limits
from istmpi.data.sparse.row_lists import masks_of
from istmpi.data.sparse.split import Ragged
from istmpi.errors import ConfigError, DataError
from istmpi.tasks import MULTI_LABEL
from istmpi.units import counted

COUNTED_FROM = "counted_from"
"""The name of the convention on the number of the first feature in rows without a header."""
TEXT = (".txt", ".svm", ".svmlight", ".libsvm", ".dat", ".data")
WORDS = {
    split: "|".join(word for word, meaning in SPLITS.items() if meaning == split)
    for split in dict.fromkeys(SPLITS.values())
}
"""What the name of a split's file has in it, as a word."""
ROW_LISTS = {"train": "(tr|trn|train)_?split", "test": "(tst|test)_?split"}
"""The patterns of the names of files that list the rows of a split."""


@dataclass(frozen=True)
class Facts:
    """What a preparation says of sparse rows, over all splits; rates of features and labels a row are of training."""

    labels: int
    trained_labels: int
    """Labels that occur in training."""
    features_per_row: float
    labels_per_row: float
    without_features: int
    """Rows that were dropped, with or without labels."""
    without_labels: int
    """Other rows that were dropped."""
    repeated: int
    """Labels that a row had already, dropped."""


@dataclass(frozen=True)
class Part:
    """The rows of a split: those of a source, or these of them."""

    source: Csr
    rows: np.ndarray | None = None
    """``[n]`` bool."""

    def blocks(self) -> Iterator[tuple[Ragged, Ragged, int, int]]:
        """Features and labels of rows that have both; how many have no features, and how many else no labels."""
        start = 0
        for features, labels in self.source.blocks():
            count = len(features)
            chosen = np.ones(count, bool) if self.rows is None else self.rows[start : start + count]
            start += count
            bare, unlabelled = (np.diff(of.offsets) == 0 for of in (features, labels))
            kept = np.flatnonzero(chosen & ~bare & ~unlabelled)
            dropped = int((chosen & bare).sum()), int((chosen & ~bare & unlabelled).sum())
            yield features.take(kept), labels.take(kept), *dropped


@dataclass(frozen=True)
class SparseMaterial:
    """Sparse rows on their way into a file, as `Material` is for examples."""

    features: int
    outputs: int
    counts: dict[str, int]
    values: dict[str, int]
    labels: dict[str, int]
    facts: Facts
    blocks: Iterator[tuple[str, Ragged, Ragged]]
    skipped: tuple[str, ...] = ()
    task: str = MULTI_LABEL
    classes: None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.features,)

    def writer(self, kind: str, source: str, target: Path, force: bool) -> SparseWriter:
        """What takes the blocks, into a file that says this of itself."""
        counts = self.counts, self.values, self.labels
        return SparseWriter(target, SparseHeader(kind, source, self.features, self.outputs, *counts), force)


def read(archive: Archive, decoder: Decoder, *, counted_from: int | None = None) -> SparseMaterial:
    """All rows that have a feature and a label; the others are dropped and counted, as are labels that a row repeats.

    Files are told by their names; of one file without lists of rows one row in five is for testing. In svmlight there
    are as many features and labels as the largest number says, and features are counted from 1 unless there is a 0;
    ``counted_from`` decides otherwise.
    """
    if counted_from not in (None, 0, 1):
        raise ConfigError(f"counted_from is {counted_from}; it must be 0 or 1.")
    names = archive.names
    arrays = [name for name in names if name.lower().endswith(".npz")]
    if arrays and counted_from is not None:
        raise ConfigError("counted_from is for rows of text; a matrix counts from 0. Leave it out.")
    decoder.notes.reading[COUNTED_FROM] = 0
    if arrays:
        sources = {split: OfArrays(archive, *pair) for split, pair in _pairs(archive, arrays).items()}
        parts = {split: Part(source) for split, source in sources.items()}
    else:
        parts = _of_text(archive, decoder, counted_from)
    sources = list({id(part.source): part.source for part in parts.values()}.values())
    _require_alike(sources)
    limits = Limits(max(of.features for of in sources), max(of.labels for of in sources))
    return _material(archive, parts, limits, sum(of.repeated for of in sources))


def _material(archive: Archive, parts: dict[str, Part], limits: Limits, repeated: int) -> SparseMaterial:
    """The rows of all parts, which are gone through once to count them."""
    counts, values, labels, dropped = {}, {}, {}, np.zeros(2, np.int64)
    seen = {split: np.zeros(limits.labels, bool) for split in parts}
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
    facts = Facts(
        limits.labels,
        int(seen["train"].sum()),
        values["train"] / counts["train"],
        labels["train"] / counts["train"],
        *dropped.tolist(),
        repeated,
    )
    blocks = ((split, rows, targets) for split, part in parts.items() for rows, targets, *_ in part.blocks())
    return SparseMaterial(limits.features, limits.labels, counts, values, labels, facts, blocks)


def _of_text(archive: Archive, decoder: Decoder, counted_from: int | None) -> dict[str, Part]:
    names = [name for name in archive.names if _plain_name(name).endswith(TEXT)]
    lists = {split: _named(names, pattern) for split, pattern in ROW_LISTS.items()}
    rest = [name for name in names if not any(name in found for found in lists.values())]
    found = {split: of for split, pattern in WORDS.items() if (of := _named(rest, pattern))}
    whole: dict[str, str] = {}
    if any(lists.values()):
        data = rest if len(rest) == 1 else [name for name in rest if re.search("data", _stem(name))]
        if len(data) == 1 and all(len(of) == 1 for of in lists.values()):
            whole = {"": data[0], **{split: of[0] for split, of in lists.items()}}
    elif {"train", "test"} <= found.keys() and all(len(of) == 1 for of in found.values()):
        whole = {split: of[0] for split, of in found.items()}
    elif len(rest) == 1:
        whole = {"": rest[0]}
    if not whole:
        held = ", ".join(archive.names[:5])
        raise DataError(
            f"{archive.path}: needed are train.txt and test.txt, one file with NAME_trSplit.txt and NAME_tstSplit.txt, "
            f"or one file; found: {held}."
        )
    rows_of = {split: name for split, name in whole.items() if "" in whole and split}
    notes = decoder.notes
    sources = _stored(archive, decoder, set(whole.values()) - set(rows_of.values()), counted_from)
    if "" not in whole:
        note_splits(notes, {name.rpartition("/")[2]: split for split, name in whole.items()})
        return {split: Part(sources[name]) for split, name in whole.items()}
    source = sources[whole[""]]
    if rows_of:
        masks = masks_of(archive, source, rows_of, notes)
        return {split: Part(source, mask) for split, mask in masks.items()}
    decoder.split = f"of the rows {ONE_IN_FIVE}"
    test = held_out(len(source))
    return {"train": Part(source, ~test), "test": Part(source, test)}


def _stored(archive: Archive, decoder: Decoder, names: set[str], counted_from: int | None) -> dict[str, Stored]:
    """The rows of files of text, read once."""
    total, before, found = sum(map(archive.nbytes, names)), 0, {}
    limits = Limits() if counted_from is None else Limits(MOST - counted_from, first=counted_from)

    def told(position: int) -> None:
        decoder.progress("reading", before + position, total)

    for name, pieces in archive.pieces(names, told):
        found[name] = Stored(name, decoder)
        found[name].fill(pieces, limits)
        before += archive.nbytes(name)
    plain = [stored for stored in found.values() if not stored.header]
    if counted_from is not None and not plain:
        raise ConfigError("counted_from is for rows without a header; those with one count from 0. Leave it out.")
    if plain and counted_from is None:
        counted_from = int(all(stored.least for stored in plain))
        has = "no feature has the number 0" if counted_from else "a feature has this number"
        decoder.notes.assume(f"features are counted from {counted_from}: {has}", "--counted-from")
    for stored in plain:
        stored.counted_from = counted_from
        decoder.notes.assume(
            f"{stored.name}: {stored.features:,} features, {stored.labels:,} labels, as its largest numbers say"
        )
    decoder.notes.reading[COUNTED_FROM] = counted_from or 0
    for stored in found.values():
        _note_lines(decoder.notes, stored)
    return found


def _note_lines(notes: Notes, stored: Stored) -> None:
    """Note the lines and numbers of a file that are not its labels and features."""
    if stored.blank_rows:
        notes.assume(f"{counted(stored.blank_rows, 'blank line')} of {stored.name}, each a row in its header's count")
    elif blank := stored.lines.blank + stored.lines.trailing:
        notes.leave_out(f"{counted(blank, 'line')} of {stored.name}, blank or a comment")
    if stored.passed_over:
        notes.leave_out(f"{counted(stored.passed_over, 'number')} of queries (qid) of {stored.name}")


def _require_alike(sources: list[Csr]) -> None:
    """Refuse files of which the headers, or the shapes, differ."""
    first = sources[0]
    for of in sources[1:]:
        mine, theirs = ((one.features, one.labels) if one.header else None for one in (of, first))
        if (mine is None) != (theirs is None) or mine != theirs:
            said = [
                "no header" if one is None else "{:,} features and {:,} labels".format(*one) for one in (mine, theirs)
            ]
            raise DataError(f"{of.name}, line 1: it says {said[0]}, but {first.name} {said[1]}. Give files that agree.")


def _pairs(archive: Archive, names: list[str]) -> dict[str, tuple[str, str]]:
    """The .npz of features and that of labels of each split."""
    found = {}
    for split, pattern in WORDS.items():
        of_split = _named(names, pattern)
        targets = [name for name in of_split if re.search("(^|[^a-z])(y|labels?)$", _stem(name))]
        others = [name for name in of_split if name not in targets]
        if len(targets) == len(others) == 1:
            found[split] = others[0], targets[0]
    if not {"train", "test"} <= found.keys():
        raise DataError(
            f"{archive.path}: needed are train_x.npz, train_y.npz, test_x.npz and test_y.npz, or the names of the "
            f"Extreme Classification Repository (trn_X_Xf.npz, trn_X_Y.npz, ...); found: {', '.join(names[:6])}."
        )
    return found


def _plain_name(name: str) -> str:
    return name.lower().removesuffix(".gz")


def _stem(name: str) -> str:
    return _plain_name(name).rpartition("/")[2].rpartition(".")[0]


def _named(names: list[str], pattern: str) -> list[str]:
    return [name for name in names if re.search(f"(^|[^a-z])({pattern})($|[^a-z])", _stem(name))]
