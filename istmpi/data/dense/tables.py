"""Tables of numbers as text, one example a line."""

from collections import Counter
from collections.abc import Collection, Iterator

import numpy as np

from istmpi.data.dataset import SPLITS
from istmpi.data.dense.delimited import DECIMAL_COMMA, Table, character_of, require_exact
from istmpi.data.dense.material import Block, Material
from istmpi.data.files.archive import Archive
from istmpi.data.files.decoder import Decoder
from istmpi.data.files.notes import Notes
from istmpi.data.holdout import ONE_IN_FIVE, held_out
from istmpi.data.labels import read_labels
from istmpi.errors import DataError
from istmpi.foreign import is_number, is_whole_number, number, one_line
from istmpi.tasks import CLASSIFICATION, REGRESSION
from istmpi.units import counted

ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
_SPLITS = {"train": "train", "test": "test", "validation": "validation", "valid": "validation", "val": "validation"}
FEW = 100
"""Integers with at most this many different values are taken for classes."""


def read(
    archive: Archive,
    decoder: Decoder,
    *,
    label: str | None = None,
    task: str | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
) -> Material:
    """The columns as float32 features, each normalised by its own mean and deviation.

    ``label`` is the name of the label's column, or its number from 0 (from the end: -1, the default). Labels that are
    no numbers, or integers with few different values, are classes; ``task`` decides otherwise. The first line is a
    header if a feature in it is no number, if its label alone is none, or if it counts 0, 1, ...; ``header`` decides
    otherwise, and ``delimiter`` where neither commas, semicolons nor tabs separate the columns. A file named train.csv
    goes with test.csv (and validation.csv); of one file, one in five examples is for testing.
    """
    if delimiter is not None:
        character_of(delimiter)
    notes, column = decoder.notes, "-1" if label is None else label
    tables: dict[str, Table] = {}
    for split, name in _find(archive).items():
        tables[split] = table = Table(archive, name, column, notes, delimiter, header)
        delimiter, header = table.delimiter, table.header is not None
    first, *others = tables.values()
    for other in others:
        if other.columns != first.columns or other.header != first.header:
            raise DataError(f"{other.name} has not the columns of {first.name}; give tables of one form.")
    if label is None:
        named = f", {first.name_of_label}" if first.name_of_label else ""
        notes.assume(f"the labels are in the last column{named}", "--label")
    notes.reading |= {"delimiter": delimiter, "header": header, "columns": first.names, "label": first.name_of_label}
    if first.names and "" in first.names:
        notes.assume(f"columns without a name are features: {first.names.count(''):,}")
    raw = {split: table.labels() for split, table in tables.items()}
    _note_rest(tables.values(), notes)
    task, classes, labels = read_labels(_typed(raw, task, notes, str(archive.path)), task, str(archive.path))
    outputs = len(classes) if task == CLASSIFICATION else 1
    if "" in tables:
        decoder.split = (
            ONE_IN_FIVE + " of each class" * (task == CLASSIFICATION) + " (train.csv and test.csv decide otherwise)"
        )
        test = held_out(len(labels[""]), labels[""] if task == CLASSIFICATION else None)
        counts = {"train": int((~test).sum()), "test": int(test.sum())}
        blocks = _dealt(first.blocks(labels[""]), test)
    else:
        counts = {split: len(y) for split, y in labels.items()}
        blocks = ((split, x, y) for split, table in tables.items() for x, y in table.blocks(labels[split]))
    for split, count in counts.items():
        if count == 0:
            raise DataError(f"{archive.path} has no {split} examples; it needs at least one.")
    named = (first.name_of_label,) if task == REGRESSION and first.name_of_label else None
    dtype, features = np.dtype(np.float32), first.width
    return Material(task, (features,), outputs, classes, dtype, features, counts, blocks, output_names=named)


def _note_rest(tables: Collection[Table], notes: Notes) -> None:
    """Note what the tables have beside their examples, once they were read."""
    excel, blank, padded = (sum(getattr(table, what) for table in tables) for what in ("excel", "blank", "padded"))
    if excel:
        notes.leave_out(f"{counted(excel, 'line')} sep=, as Excel writes")
    if blank:
        notes.leave_out(counted(blank, "blank line"))
    if padded:
        notes.assume(f"white space around labels does not count: {padded:,} have some")


def _find(archive: Archive) -> dict[str, str]:
    """The file of each split, or the one file under the name ``""``."""
    names = [name for name in archive.names if name.lower().endswith(ENDINGS)]
    by_split: dict[str, list[str]] = {}
    for name in names:
        by_split.setdefault(_SPLITS.get(name.rpartition("/")[2].partition(".")[0].lower(), ""), []).append(name)
    if len(names) == 1:
        chosen = {"": names[0]}
    elif {"train", "test"} <= by_split.keys():
        chosen = {split: by_split[split][0] for split in SPLITS if split in by_split}
    else:
        held = ", ".join(names[:5]) or "none"
        raise DataError(f"{archive.path}: needed is one table, or train.csv and test.csv; tables found: {held}.")
    for split in chosen:
        if len(by_split.get(split, ())) > 1:
            raise DataError(
                f"{archive.path}: {' and '.join(by_split[split][:2])} are both for {split}. Keep one of them."
            )
    return chosen


def _typed(raw: dict[str, list[str]], task: str | None, notes: Notes, source: str) -> dict[str, np.ndarray]:
    """Labels as strings, floats or, where they are classes by whole numbers, integers; and a note on why."""
    texts = Counter(label for labels in raw.values() for label in labels)
    names = [text for text in texts if not is_number(text)]
    dtype, reason = np.float64, f"{texts.total():,} labels are {len(texts):,} different"
    if names:
        if task != CLASSIFICATION and all(is_number(text) or DECIMAL_COMMA.fullmatch(text) for text in texts):
            raise DataError(
                f"{source}: the label {one_line(names[0])!r} has a decimal comma. Write it with a point, or give "
                "--task classification."
            )
        count = sum(texts[name] for name in names)
        dtype = np.str_
        reason = f"{count:,} of {texts.total():,} labels are no numbers, as {one_line(names[0])!r}, so all are classes"
    elif all(map(is_whole_number, texts)):
        values = {int(text) for text in texts}
        few = len(values) <= FEW
        reason += f" whole numbers, {'at most' if few else 'more than'} {FEW}, so they are "
        reason += "classes" if few else "numbers to predict"
        if task == CLASSIFICATION or (task is None and few):
            dtype = np.int64 if max(map(abs, values), default=0) < 2**63 else np.str_
            if dtype is np.int64 and len(values) < len(texts):
                notes.assume(f"labels that are written in {len(texts):,} ways are {len(values):,} classes, as 07 is 7")
        else:
            for text in texts:
                require_exact(text, f"{source}: the label")
    else:
        whole = all(number(text).is_integer() for text in texts)
        reason += (
            f" numbers, {'whole but not written so' if whole else 'not all whole'}, so they are numbers to predict"
        )
    if task is None and len(names) < len(texts):
        notes.assume(reason, "--task")
    return {split: np.array(labels).astype(dtype) for split, labels in raw.items()}


def _dealt(blocks: Iterator[tuple[np.ndarray, np.ndarray]], test: np.ndarray) -> Iterator[Block]:
    """Blocks of one table as blocks of two splits."""
    start = 0
    for x, y in blocks:
        mask = test[start : start + len(y)]
        start += len(y)
        yield "train", x[~mask], y[~mask]
        yield "test", x[mask], y[mask]
