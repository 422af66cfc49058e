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

from istmpi.data.holdout import ONE_IN_FIVE, held_out
from istmpi.data.prepare.archive import Archive
from istmpi.data.prepare.csr import Csr, OfArrays, Stored
from istmpi.data.prepare.files import Decoder
from istmpi.data.prepare.xc_lines import Header, Limits, blocks_of_lines, header_of, parsed
from istmpi.data.sparse import Ragged
from istmpi.data.sparse_file import SparseHeader, SparseWriter
from istmpi.errors import DataError
from istmpi.tasks import MULTI_LABEL

TEXT = (".txt", ".svm", ".svmlight", ".libsvm", ".dat", ".data")
WORDS = {"train": "train|trn", "test": "test|tst", "validation": "validation|valid|val"}
"""What the name of a split's file has in it, as a word."""
ROW_LISTS = {"train": "(tr|trn|train)_?split", "test": "(tst|test)_?split"}
"""And that of a file with the rows of a split."""


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


def read(archive: Archive, decoder: Decoder) -> SparseMaterial:
    """All rows that have a feature and a label; the others are dropped and counted, as are labels that a row repeats.

    Files are told by their names; of one file without lists of rows one row in five is for testing. In svmlight there
    are as many features and labels as the largest number says, and features are counted from 1 unless there is a 0.
    """
    names = archive.names
    arrays = [name for name in names if name.lower().endswith(".npz")]
    if arrays:
        sources = {split: OfArrays(archive, *pair) for split, pair in _pairs(archive, arrays).items()}
        parts = {split: Part(source) for split, source in sources.items()}
    else:
        parts = _of_text(archive, decoder)
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


def _of_text(archive: Archive, decoder: Decoder) -> dict[str, Part]:
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
    listed = {name for split, name in whole.items() if "" in whole and split}
    rows_of = {split: _row_list(archive, whole[split]) for split in whole if whole[split] in listed}
    sources = _stored(archive, decoder, {name for name in whole.values() if name not in listed})
    if "" not in whole:
        return {split: Part(sources[name]) for split, name in whole.items()}
    source = sources[whole[""]]
    if rows_of:
        return {split: Part(source, _mask(source, whole[split], rows)) for split, rows in rows_of.items()}
    decoder.split = f"of the rows {ONE_IN_FIVE}"
    test = held_out(len(source))
    return {"train": Part(source, ~test), "test": Part(source, test)}


def _stored(archive: Archive, decoder: Decoder, names: set[str]) -> dict[str, Stored]:
    """The rows of files of text, read once."""
    total, before, found = sum(map(archive.nbytes, names)), 0, {}

    def told(position: int) -> None:
        decoder.progress("reading", before + position, total)

    for name, pieces in archive.pieces(names, told):
        found[name] = Stored(name, decoder)
        _read_rows(found[name], pieces)
        before += archive.nbytes(name)
    if not any(of.header or of.least == 0 for of in found.values()):
        for of in found.values():
            of.counted_from = 1
    return found


def _read_rows(stored: Stored, pieces: Iterator[bytes]) -> None:
    name, line, limits, header = stored.name, 1, Limits(), None
    for number, block in enumerate(blocks_of_lines(name, pieces)):
        if number == 0:
            first, _, rest = block.partition(b"\n")
            if header := header_of(name, first):
                limits, block = Limits(header.features, header.labels), rest
                stored.header, stored.first_line = header, (line := 2)
        rows = parsed(name, block, line, limits)
        if header and len(stored) + len(rows.counts) > header.rows:
            raise DataError(
                f"{name}, line {line + header.rows - len(stored)}: {_says(header)}, and here is one more. Correct the "
                f"header."
            )
        stored.add(rows)
        line += block.count(b"\n")
    if not len(stored):
        raise DataError(f"{name}, line {line}: it has no rows, the file is empty. Give one with rows.")
    if header and len(stored) != header.rows:
        raise DataError(
            f"{name}, line {line - 1}: {_says(header)}, but it ends here after {len(stored):,} (blank lines do not "
            f"count). Correct the header, or copy the file again."
        )


def _says(header: Header) -> str:
    return f"the header says that there are {header.rows:,} rows"


def _row_list(archive: Archive, name: str) -> np.ndarray:
    """The rows that a list of them names, from 0; of several columns, each another split, the first."""
    found, line = [], 1
    for _, pieces in archive.pieces({name}):
        for block in blocks_of_lines(name, pieces):
            for number, text in enumerate(block.split(b"\n")[:-1], line):
                word = text.split()[:1]
                if word and not (word[0].isdigit() and 1 <= int(word[0]) < 2**62):
                    raise DataError(f"{name}, line {number}: needed is the number of a row, from 1. Correct the line.")
                found += [int(one) - 1 for one in word]
            line += block.count(b"\n")
    if not found:
        raise DataError(f"{name}, line 1: it names no rows: the file is empty. Give one with numbers of rows.")
    return np.array(found)


def _mask(source: Csr, name: str, rows: np.ndarray) -> np.ndarray:
    if (most := int(rows.max())) >= len(source):
        at = int(np.flatnonzero(rows == most)[0]) + 1
        raise DataError(
            f"{name}, line {at}: there is no row {most + 1:,}; {source.name} has {len(source):,}. Take the lists that "
            f"belong to it."
        )
    mask = np.zeros(len(source), bool)
    mask[rows] = True
    return mask


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
    """The names with a word like that in them."""
    return [name for name in names if re.search(f"(^|[^a-z])({pattern})($|[^a-z])", _stem(name))]
