"""Tables of numbers as text, one example a line."""

from collections import Counter

import numpy as np

from istmpi.data.dataset import SPLITS
from istmpi.data.dense.delimited import Table, character_of, read_table, require_exact
from istmpi.data.dense.file import material_of
from istmpi.data.files.archive import Archive
from istmpi.data.files.decoder import Decoder, Notes, split_of
from istmpi.data.holdout import ONE_IN_FIVE, with_test
from istmpi.data.labels import read_labels
from istmpi.data.writer import Material
from istmpi.errors import DataError
from istmpi.foreign import is_number, is_whole_number, number, one_line
from istmpi.tasks import CLASSIFICATION, REGRESSION

ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
FEW = 100
"""The most different whole numbers that are taken for classes."""


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
    no numbers, or few different integers, are classes; ``task`` decides otherwise. A file train.csv goes with test.csv
    (and validation.csv).
    """
    if delimiter is not None:
        character_of(delimiter)
    notes, source = decoder.notes, str(archive.path)
    tables: dict[str, Table] = {}
    for split, name in _find(archive).items():
        column = "-1" if label is None else label
        tables[split] = table = read_table(archive, name, column, notes, delimiter, header)
        delimiter, header = table.delimiter, table.header is not None
    first, *others = tables.values()
    for other in others:
        if other.x.shape[1] != first.x.shape[1] or other.header != first.header:
            raise DataError(f"{other.name} has not the columns of {first.name}; give tables of one form.")
    if label is None:
        named = f", {first.name_of_label}" if first.name_of_label else ""
        notes.assume(f"the labels are in the last column{named}", "--label")
    notes.reading |= {"delimiter": delimiter, "header": header, "columns": first.names, "label": first.name_of_label}
    raw = {split: table.labels for split, table in tables.items()}
    task, classes, labels = read_labels(_typed(raw, task, notes, source), task, source)
    splits = {split: (table.x, labels[split]) for split, table in tables.items()}
    if "" in splits:
        of_class = " of each class" * (task == CLASSIFICATION)
        decoder.split = f"{ONE_IN_FIVE}{of_class} (train.csv and test.csv decide otherwise)"
    splits = with_test(splits, source, by_class=classes is not None)
    named = (first.name_of_label,) if task == REGRESSION and first.name_of_label else None
    dtype, groups = np.dtype(np.float32), first.x.shape[1]
    return material_of("csv", archive.source, task, splits, classes, dtype, groups, output_names=named)


def _find(archive: Archive) -> dict[str, str]:
    """Return the file of each split, or the one file under the name ``""``."""
    names = [name for name in archive.names if name.lower().endswith(ENDINGS)]
    by_split: dict[str, list[str]] = {}
    for name in names:
        by_split.setdefault(split_of(name.rpartition("/")[2].partition(".")[0]), []).append(name)
    if len(names) == 1:
        return {"": names[0]}
    if not {"train", "test"} <= by_split.keys():
        held = ", ".join(names[:5]) or "none"
        raise DataError(f"{archive.path}: needed is one table, or train.csv and test.csv; tables found: {held}.")
    chosen = {split: by_split[split] for split in SPLITS if split in by_split}
    for split, files in chosen.items():
        if len(files) > 1:
            raise DataError(f"{archive.path}: {' and '.join(files[:2])} are both for {split}. Keep one of them.")
    return {split: files[0] for split, files in chosen.items()}


def _typed(raw: dict[str, list[str]], task: str | None, notes: Notes, source: str) -> dict[str, np.ndarray]:
    texts = Counter(text for labels in raw.values() for text in labels)
    names = [text for text in texts if not is_number(text)]
    dtype, reason = np.float64, f"{texts.total():,} labels are {len(texts):,} different"
    if names:
        if task != CLASSIFICATION and all(is_number(text.replace(",", ".", 1)) for text in texts):
            raise DataError(
                f"{source}: the label {one_line(names[0])!r} has a decimal comma. Write it with a point, or give "
                "--task classification."
            )
        count, dtype = sum(texts[name] for name in names), np.str_
        reason = f"{count:,} of {texts.total():,} labels are no numbers, as {one_line(names[0])!r}, so all are classes"
    elif all(map(is_whole_number, texts)):
        few = len({int(text) for text in texts}) <= FEW
        reason += f" whole numbers, {'at most' if few else 'more than'} {FEW}, so they are "
        reason += "classes" if few else "numbers to predict"
        if task == CLASSIFICATION or (task is None and few):
            dtype = np.int64 if max((abs(int(text)) for text in texts), default=0) < 2**63 else np.str_
        else:
            for text in texts:
                require_exact(text, f"{source}: the label")
    else:
        whole = "whole but not written so" if all(number(text).is_integer() for text in texts) else "not all whole"
        reason += f" numbers, {whole}, so they are numbers to predict"
    if task is None and len(names) < len(texts):
        notes.assume(reason, "--task")
    return {split: np.array(labels).astype(dtype) for split, labels in raw.items()}
