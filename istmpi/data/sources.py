"""From the name that a run gives its data to the data set."""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from istmpi.data.dataset import SPLITS, Dataset, require_finite
from istmpi.data.digits import open_digits
from istmpi.data.files.npz import array_names, convention_of, load_arrays, looks_channels_last
from istmpi.data.graph.split import batched
from istmpi.data.hdf5 import open_prepared
from istmpi.data.holdout import held_out
from istmpi.data.images.split import Augmentation, augmented
from istmpi.data.kinds import split_of
from istmpi.data.labels import read_labels
from istmpi.data.offsets import Extent, named
from istmpi.data.text.split import WINDOW, windowed
from istmpi.data.writer import SUFFIXES
from istmpi.errors import ConfigError, DataError, kind_of
from istmpi.tasks import CLASSIFICATION, DENSE_LABELS, GRAPH_TASKS, MULTI_LABEL, NEXT_TOKEN, NODE_CLASSES, REGRESSION

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
    if opened.task in (NEXT_TOKEN, MULTI_LABEL, DENSE_LABELS) and data.placement == "by-label":
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
    from istmpi.data.files.notes import Notes  # here, for its package needs this module

    notes = Notes()
    with path.open("rb") as file:
        arrays, _ = split_arrays(load_arrays(file, str(path)), str(path))
    raw = {split: y for split, (_, y) in arrays.items()}
    task, classes, labels = read_labels(raw, None, str(path), notes=notes)
    shape = next(iter(arrays.values()))[0].shape[1:]
    if looks_channels_last(shape):
        raise DataError(
            f"{path}: x has examples {' x '.join(map(str, shape))}, which is {shape[0]} channels. Where channels come "
            f"last, prepare it: istmpi prepare arrays {path} {path.stem}.h5 --channels last (or first)."
        )
    rows = {split: _finite_rows(x, split, str(path)) for split, (x, _) in arrays.items()}
    if task == REGRESSION:
        labels = {split: _exact(y, split, "output", str(path)) for split, y in labels.items()}
    splits = {split: split_of("arrays", shape, x, labels[split]) for split, x in rows.items()}
    outputs = len(classes) if task == CLASSIFICATION else labels["train"].shape[1]
    assumed = tuple(
        str(replace(note, option=note.option and f"istmpi prepare arrays {note.option}"))
        for note in (*notes.assumed, *notes.left_out)
    )
    reading = convention_of(x.dtype for x, _ in arrays.values())
    return Dataset(splits, task, shape, outputs, classes, str(path), "arrays", assumed=assumed, reading=reading)


def split_arrays(
    arrays: dict[str, np.ndarray], source: str
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], dict[str, list[str]]]:
    """x [n, ...] and y [n, ...] per split, and the names of the arrays that were taken per split (``""``: split here).

    They are named x_train and y_train, or train_x and train_y, in small letters or capitals. Arrays named x and y alone
    are split: one in five is a test example. Raises DataError where a name is missing, where lengths or shapes
    disagree, or where some splits have bytes and others fractions.
    """
    by_name: dict[str, str] = {}
    for name in arrays:
        if (other := by_name.setdefault(name.lower(), name)) != name:
            raise DataError(f"{source} holds both {other} and {name}. Keep one of them.")
    names: dict[str, list[str]] = {}
    for split in SPLITS:
        for x, y in zip(array_names("x", split), array_names("y", split)):
            if x in by_name and y in by_name:
                names.setdefault(split, [by_name[x], by_name[y]])
    if not names and "x" in by_name and "y" in by_name:
        names[""] = [by_name["x"], by_name["y"]]
    elif not names.keys() >= {"train", "test"}:
        held = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(f"{source} holds {held}; it needs x_train, y_train, x_test and y_test, or x and y.")
    pairs = {split: (arrays[x], arrays[y]) for split, (x, y) in names.items()}
    shape = next(iter(pairs.values()))[0].shape[1:]
    for x, y in pairs.values():
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
    types = {split: x.dtype for split, (x, _) in pairs.items()}
    if np.dtype(np.uint8) in types.values() and any(kind.kind == "f" for kind in types.values()):
        shown = ", ".join(f"{kind} in {split}" for split, kind in types.items())
        raise DataError(
            f"{source}: x is {shown}; bytes (0 to 255) and fractions (0 to 1) would be read alike. Save all splits "
            f"as one type, on one scale."
        )
    if "" in pairs:
        x, y = pairs[""]
        test = held_out(len(y))
        pairs = {"train": (x[~test], y[~test]), "test": (x[test], y[test])}
    for split, (_, y) in pairs.items():
        if len(y) == 0:
            raise DataError(f"{source} has no {split} examples; it needs at least one.")
    return pairs, names


def _finite_rows(x: np.ndarray, split: str, source: str) -> np.ndarray:
    x = x.reshape(len(x), -1)
    step = max(1, _CHECKED // x.shape[1])
    for start in range(0, len(x), step):
        require_finite(x[start : start + step], split, source, start)
    return x if x.dtype == np.uint8 else _exact(x, split, "feature", source)


def _exact(x: np.ndarray, split: str, what: str, source: str) -> np.ndarray:
    """Numbers [n, features] as float32; DataError for a feature whose values are too close together for that."""
    if np.can_cast(x.dtype, np.float32):
        return x.astype(np.float32, copy=False)
    extent, step = Extent(), max(1, _CHECKED // x.shape[1])
    for start in range(0, len(x), step):
        extent.add(x[start : start + step])
    offset = extent.offset()
    lost = extent.lost if offset is None else np.union1d(extent.lost, np.flatnonzero(offset))
    if len(lost):
        raise DataError(
            f"{source}: {split} values of {named(lost, what)} are too close together for float32. Prepare it, which "
            f"subtracts an offset first: istmpi prepare arrays {source} {Path(source).stem}.h5"
        )
    return x.astype(np.float32)


def _nearest(path: Path) -> str:
    """``"; did you mean X?"`` for the nearest name in the same folder, else what to do."""
    if not path.parent.is_dir():
        return f": there is no folder {path.parent}. Check the path."
    near = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1)
    if near:
        return f"; did you mean {path.with_name(near[0])}?"
    return ". Make it with `istmpi prepare`, or use the built-in data: digits."
