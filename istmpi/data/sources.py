"""From the name that a run gives its data to the data set."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from istmpi.data.arrays import load_arrays
from istmpi.data.dataset import SPLITS, Dataset, require_finite
from istmpi.data.digits import open_digits
from istmpi.data.graph import batched
from istmpi.data.hdf5 import open_prepared
from istmpi.data.holdout import held_out
from istmpi.data.images import Augmentation, augmented
from istmpi.data.kinds import split_of
from istmpi.data.labels import read_labels
from istmpi.data.text import WINDOW, windowed
from istmpi.data.writer import SUFFIXES
from istmpi.errors import ConfigError, DataError, kind_of
from istmpi.tasks import CLASSIFICATION, DENSE_MULTI_LABEL, GRAPH_TASKS, MULTI_LABEL, NEXT_TOKEN, NODE_CLASSES

if TYPE_CHECKING:
    from istmpi.config import Data

RANK = "{rank}"
_CHECKED = 2**22
"""Features that are checked at a time: bounds the memory of it."""
_KINDS = {".csv": "csv", ".npy": "arrays", ".txt": "text", ".jsonl": "text", ".svm": "xc"}
"""As what `istmpi prepare` mostly takes a file, by its ending."""


def open_for_training(data: Data, stream: int | None = None, seed: int = 0) -> Dataset:
    """The data set of a run's settings, of whose images training sees the versions that these ask for.

    ``seed``: of what is held out for validation. Raises ConfigError where the data do not fit the settings, and what
    `open_dataset` does.
    """
    opened = open_dataset(data.source, stream, data.length)
    if opened.task in (NEXT_TOKEN, MULTI_LABEL, DENSE_MULTI_LABEL) and data.placement == "by-label":
        what = "text" if opened.task == NEXT_TOKEN else f"for {opened.task}"
        raise ConfigError(
            f"data.placement = 'by-label' is for classes, but {opened.source} is {what}. Use shared or sharded."
        )
    if opened.task != NEXT_TOKEN and data.length != WINDOW:
        raise ConfigError(
            f"data.length = {data.length} is for text, but {opened.source} is of kind {opened.kind}. Leave it out."
        )
    if (
        data.placement == "by-label"
        and opened.task in GRAPH_TASKS
        and (data.graph, opened.task) != ("neighbours", NODE_CLASSES)
    ):
        raise ConfigError(
            f"data.placement = 'by-label' needs examples with one class each, but those of {opened.source} are not. "
            f"Use shared, or of classes data.graph = 'neighbours'."
        )
    if (data.placement, data.graph) == ("sharded", "full") and opened.task in GRAPH_TASKS:
        raise ConfigError(
            f"data.placement = 'sharded' needs several examples, but {opened.source} is one whole graph. Use shared, "
            f"or data.graph = 'clusters' or 'neighbours'."
        )
    opened = batched(opened, data.graph, data.fanout)
    opened = augmented(opened, Augmentation(data.crop, data.flip, data.cutout))
    return opened.with_validation(data.validation, seed)


def open_dataset(source: str, stream: int | None = None, length: int = WINDOW) -> Dataset:
    """The data set that ``source`` names: ``"digits"``, a prepared ``.h5`` or an ``.npz``; text in windows of a length.

    ``{rank}`` in a path stands for ``stream``: each rank's own file (local placement). Rows are memory-mapped wherever
    the file allows it. Raises DataError for a file that is missing, damaged or of the wrong kind, ConfigError where
    ``{rank}`` has nothing to stand for.
    """
    if source == "digits":
        return open_digits()
    if RANK in source and stream is None:
        raise ConfigError(f"data {source} has {RANK}, but this command reads one file; write a rank's number instead.")
    path = Path(source.replace(RANK, str(stream)))
    if not path.exists():
        raise DataError(f"data {path} does not exist{_nearest(path)}")
    if not path.is_file():
        raise DataError(f"data {path} is {kind_of(path)}; it must be a file.")
    if path.suffix == ".npz":
        return open_npz(path)
    if path.suffix in SUFFIXES:
        return windowed(open_prepared(path), length)
    kind = _KINDS.get(path.suffix, "KIND")
    raise DataError(
        f"data {path} is neither .h5 nor .npz; prepare it first: istmpi prepare {kind} {path} {path.stem}.h5"
    )


def open_npz(path: Path) -> Dataset:
    """An .npz as it stands: not normalised; arrays named as ``split_arrays`` says."""
    from istmpi.data.prepare.notes import Notes  # here, for its package needs this module

    notes = Notes()
    with path.open("rb") as file:
        arrays = split_arrays(load_arrays(file, str(path)), str(path))
    raw = {split: y for split, (_, y) in arrays.items()}
    task, classes, labels = read_labels(raw, None, str(path), notes=notes)
    shape = next(iter(arrays.values()))[0].shape[1:]
    rows = {split: _finite_rows(x, split, str(path)) for split, (x, _) in arrays.items()}
    splits = {split: split_of("arrays", shape, x, labels[split]) for split, x in rows.items()}
    outputs = len(classes) if task == CLASSIFICATION else labels["train"].shape[1]
    assumed = [f"{note.text} (istmpi prepare arrays {note.option} decides otherwise)" for note in notes.assumed]
    told = assumed + [note.text for note in notes.left_out]
    return Dataset(splits, task, shape, outputs, classes, str(path), "arrays", assumed=tuple(told))


def split_arrays(arrays: dict[str, np.ndarray], source: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """x [n, ...] and y [n, ...] per split, from arrays named x_train and y_train, or train_x and train_y.

    Arrays named x and y alone are split: one in five is a test example. Raises DataError where a name is missing, or
    where lengths or shapes disagree.
    """
    found = {}
    for split in SPLITS:
        for names in ((f"x_{split}", f"y_{split}"), (f"{split}_x", f"{split}_y")):
            if all(name in arrays for name in names):
                found[split] = arrays[names[0]], arrays[names[1]]
    if not found and "x" in arrays and "y" in arrays:
        found[""] = arrays["x"], arrays["y"]
    elif not found.keys() >= {"train", "test"}:
        held = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(f"{source} holds {held}; it needs x_train, y_train, x_test and y_test, or x and y.")
    shape = next(iter(found.values()))[0].shape[1:]
    for x, y in found.values():
        if (
            x.ndim < 2
            or y.ndim not in (1, 2)
            or len(x) != len(y)
            or x.shape[1:] != shape
            or 0 in shape + y.shape[1:]
            or x.dtype.kind not in "fiub"
        ):
            raise DataError(
                f"{source}: x {x.shape} of {x.dtype} and y {y.shape} do not fit; needed are numbers [n, ...] and n "
                "labels, with examples of one shape in all splits."
            )
    if "" in found:
        x, y = found[""]
        test = held_out(len(y))
        found = {"train": (x[~test], y[~test]), "test": (x[test], y[test])}
    for split, (_, y) in found.items():
        if len(y) == 0:
            raise DataError(f"{source} has no {split} examples; it needs at least one.")
    return found


def _finite_rows(x: np.ndarray, split: str, source: str) -> np.ndarray:
    """x as [n, features] of a type that ``DenseSplit`` takes, without a copy where it is one already, all of it finite.

    Nobody checked an .npz before, so all of it is read once; a prepared file was checked when it was written.
    """
    x = x.reshape(len(x), -1)
    step = max(1, _CHECKED // x.shape[1])
    for start in range(0, len(x), step):
        require_finite(x[start : start + step], split, source, start)
    return x if x.dtype in (np.float32, np.uint8) else x.astype(np.float32)


def _nearest(path: Path) -> str:
    """``"; did you mean X?"`` for the nearest name in the same folder, else what to do."""
    if not path.parent.is_dir():
        return f": there is no folder {path.parent}. Check the path."
    near = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1)
    if near:
        return f"; did you mean {path.with_name(near[0])}?"
    return ". Make it with `istmpi prepare`, or use the built-in data: digits."
