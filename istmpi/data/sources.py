"""Opens the data set that a run names."""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from istmpi.data import KINDS
from istmpi.data.batches import BY_CLASS
from istmpi.data.callable.source import is_function, open_own
from istmpi.data.dataset import Dataset
from istmpi.data.decoder import Notes
from istmpi.data.dense.arrays import build_from_arrays, draw_missing_test, load_arrays
from istmpi.data.graph.split import batch_nodes
from istmpi.data.hdf5 import open_prepared
from istmpi.data.holdout import NO_TEST, TestSplit, draw_test
from istmpi.data.images.split import Augmentation, augment, make_examples
from istmpi.data.moments import Moments
from istmpi.data.table_cache import is_table, open_table
from istmpi.data.text.split import WINDOW, TextSplit, cut_windows
from istmpi.data.writer import SUFFIXES
from istmpi.errors import ConfigError, DataError, kind_of
from istmpi.tasks import CLASSIFICATION, TASKS

if TYPE_CHECKING:
    from istmpi.data.settings import Data

RANK = "{rank}"
"""Stands in a path for a rank's number."""


def open_for_training(data: Data, stream: int | None = None, seed: int = 0) -> Dataset:
    """Return the data set of a run's settings; ``seed`` draws held-out examples. Raises ConfigError
    or DataError."""
    test = TestSplit(data.test, seed, required=True)
    opened = open_dataset(data.source, stream, data.length, data.scoring, data.ahead, test)
    _require_fitting_settings(opened, data)
    opened = batch_nodes(opened, data.graph, data.fanout, data.placement)
    opened = augment(opened, Augmentation(data.crop, data.flip, data.cutout, data.transforms))
    return opened.with_validation(data.validation, seed)


def _require_fitting_settings(opened: Dataset, data: Data) -> None:
    """Raise ConfigError for settings of [data] that the data set's task has no use for."""
    why = TASKS[opened.task].unplaced
    if data.placement in BY_CLASS and why:
        raise ConfigError(
            f"data.placement = {data.placement!r} is for classes, but {opened.source} is {why}. "
            "Use shared or sharded."
        )
    if not isinstance(opened.train, TextSplit) and data.length != WINDOW:
        raise ConfigError(
            f"data.length = {data.length} is for text, but {opened.source} is of kind "
            f"{opened.kind}. Leave it out."
        )


def open_dataset(
    source: str,
    stream: int | None = None,
    length: int = WINDOW,
    scoring: str = "",
    ahead: int = 0,
    test: TestSplit = NO_TEST,
) -> Dataset:
    """Return the data set of ``source``: ``"digits"``, a prepared ``.h5``, an ``.npz``, a table,
    which is prepared in a cache, or FILE.py:function.

    The function is called. ``stream`` replaces ``{rank}`` in a path. ``length`` is the window of
    text, in tokens. ``test``, and for functions ``scoring`` and ``ahead``, are settings of [data].
    Raises ConfigError or DataError.
    """
    if is_function(source):
        return open_own(source, stream or 0, scoring, ahead, test)
    if source == "digits":
        test.is_drawn(source, True)
        return open_digits()
    if RANK in source and stream is None:
        raise ConfigError(
            f"data {source} has {RANK}, but this command reads one file; give a rank's number "
            "instead."
        )
    path = Path(source.replace(RANK, str(stream)))
    _require_file(path)
    if path.suffix == ".npz":
        return open_npz(path, test)
    if path.suffix in SUFFIXES:
        test.is_drawn(source, True)
        return cut_windows(open_prepared(path), length)
    if is_table(path):
        test.is_drawn(source, True)
        return open_table(path)
    raise _refuse(path)


def _refuse(path: Path) -> DataError:
    # Several kinds may have files with the same ending.
    kind = "|".join(kind.name for kind in KINDS.values() if path.suffix in kind.endings) or "KIND"
    return DataError(
        f"data {path} is not .h5 or .npz; prepare it first: istmpi prepare {kind} {path} "
        f"{path.stem}.h5"
    )


def _require_file(path: Path) -> None:
    if not path.exists():
        raise DataError(f"data {path} does not exist{_suggest_near(path)}")
    if not path.is_file():
        cure = ""
        if path.is_dir():
            cure = f" Use istmpi prepare ({', '.join(KINDS)})."
        raise DataError(f"data {path} is {kind_of(path)}; it must be a file.{cure}")


def open_npz(path: Path, test: TestSplit = NO_TEST) -> Dataset:
    source = str(path)
    notes = Notes()
    with path.open("rb") as file:
        arrays = draw_missing_test(load_arrays(file, source), source, test)
        material = build_from_arrays(arrays, source, notes)
    splits = {}
    for split in material.counts:
        x = material.datasets[f"{split}/x"][:]
        splits[split] = make_examples(material.shape, x, material.datasets[f"{split}/y"])
    assumed = []
    # An .npz is read anew by each run, so a run itself says what it assumes.
    for note in (*notes.assumed, *notes.left_out):
        option = note.option and f"istmpi prepare arrays {note.option}"
        assumed.append(str(replace(note, option=option)))
    return Dataset(
        splits=splits,
        task=material.task,
        shape=material.shape,
        outputs=material.outputs,
        classes=material.classes,
        source=source,
        kind="arrays",
        assumed=tuple(assumed),
        reading=notes.reading,
    )


def open_digits() -> Dataset:
    """Return 1,797 handwritten digits, of 8x8 pixels from 0 to 16, in ten classes.

    The test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak, UCI
    Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49, licence CC BY 4.0.
    ``digits.npz`` holds x [1797, 64] and y [1797], uint8.
    """
    with (
        resources.files("istmpi.data").joinpath("digits.npz").open("rb") as file,
        np.load(file) as arrays,
    ):
        x = arrays["x"]
        y = arrays["y"].astype(np.int64)
    # The file has no splits.
    test = draw_test(len(y), y)
    moments = Moments(x.shape[1])
    # Test examples have no part in training, nor in its normalisation.
    moments.add(x[~test])
    shape = (1, 8, 8)
    # All pixels have the same range.
    normalisation = moments.normalisation(groups=1)
    return Dataset(
        splits={
            "train": make_examples(shape, x[~test], y[~test], normalisation),
            "test": make_examples(shape, x[test], y[test], normalisation),
        },
        task=CLASSIFICATION,
        shape=shape,
        outputs=10,
        classes=tuple(str(digit) for digit in range(10)),
        source="digits",
        kind="digits",
        mean=normalisation.mean,
        std=normalisation.std,
    )


def _suggest_near(path: Path) -> str:
    if not path.parent.is_dir():
        return f": the folder {path.parent} does not exist. Check the path."
    near = difflib.get_close_matches(path.name, os.listdir(path.parent), 1, 0.75)
    if near:
        return f"; did you mean {path.with_name(near[0])}?"
    return ". Make it with `istmpi prepare`, or use the built-in digits."
