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
from istmpi.data.callable.source import is_function, open_own
from istmpi.data.dataset import Dataset
from istmpi.data.decoder import Notes
from istmpi.data.dense.arrays import load_arrays, material_of_arrays, with_test_drawn
from istmpi.data.graph.split import batched
from istmpi.data.hdf5 import open_prepared
from istmpi.data.holdout import NO_TEST, TestSplit, held_out
from istmpi.data.images.split import Augmentation, augmented, examples_of
from istmpi.data.moments import Moments
from istmpi.data.text.split import WINDOW, windowed
from istmpi.data.writer import SUFFIXES
from istmpi.errors import ConfigError, DataError, kind_of
from istmpi.tasks import CLASSIFICATION, TASKS

if TYPE_CHECKING:
    from istmpi.data.settings import Data

RANK = "{rank}"


def open_for_training(data: Data, stream: int | None = None, seed: int = 0) -> Dataset:
    """Return the data set of a run's settings; ``seed`` draws held-out examples. Raises ConfigError
    or DataError."""
    test = TestSplit(data.test, seed, required=True)
    opened = open_dataset(data.source, stream, data.length, data.scoring, data.ahead, test)
    task = TASKS[opened.task]
    if data.placement == "by-label" and (
        task.of_tokens or task.ranks_labels or task.several_labels or task.of_trees
    ):
        what = (
            "text" if task.of_tokens else "without them" if task.of_trees else f"for {opened.task}"
        )
        raise ConfigError(
            f"data.placement = 'by-label' is for classes, but {opened.source} is {what}. Use shared or sharded."
        )
    if not task.of_tokens and data.length != WINDOW:
        raise ConfigError(
            f"data.length = {data.length} is for text, but {opened.source} is of kind {opened.kind}. Leave it out."
        )
    opened = batched(opened, data.graph, data.fanout, data.placement)
    opened = augmented(opened, Augmentation(data.crop, data.flip, data.cutout, data.transforms))
    return opened.with_validation(data.validation, seed)


def open_dataset(
    source: str,
    stream: int | None = None,
    length: int = WINDOW,
    scoring: str = "",
    ahead: int = 0,
    test: TestSplit = NO_TEST,
) -> Dataset:
    """Return the data set of ``source``: ``"digits"``, a prepared ``.h5``, an ``.npz``, or
    FILE.py:function.

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
            f"data {source} has {RANK}, but this command reads one file; give a rank's number instead."
        )
    path = Path(source.replace(RANK, str(stream)))
    if not path.exists():
        raise DataError(f"data {path} does not exist{_nearest(path)}")
    if not path.is_file():
        cure = f" Use istmpi prepare ({', '.join(KINDS)})." * path.is_dir()
        raise DataError(f"data {path} is {kind_of(path)}; it must be a file.{cure}")
    if path.suffix == ".npz":
        return open_npz(path, test)
    if path.suffix in SUFFIXES:
        test.is_drawn(source, True)
        return windowed(open_prepared(path), length)
    kind = "|".join(kind.name for kind in KINDS.values() if path.suffix in kind.endings) or "KIND"
    raise DataError(
        f"data {path} is not .h5 or .npz; prepare it first: istmpi prepare {kind} {path} {path.stem}.h5"
    )


def open_npz(path: Path, test: TestSplit = NO_TEST) -> Dataset:
    notes, source = Notes(), str(path)
    with path.open("rb") as file:
        made = material_of_arrays(
            with_test_drawn(load_arrays(file, source), source, test), source, notes
        )
    rows = {
        split: (made.datasets[f"{split}/x"][:], made.datasets[f"{split}/y"])
        for split in made.counts
    }
    splits = {split: examples_of(made.shape, x, y) for split, (x, y) in rows.items()}
    assumed = tuple(
        str(replace(note, option=note.option and f"istmpi prepare arrays {note.option}"))
        for note in (*notes.assumed, *notes.left_out)
    )
    facts = made.task, made.shape, made.outputs, made.classes, source, "arrays"
    return Dataset(splits, *facts, assumed=assumed, reading=notes.reading)


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
        x, y = arrays["x"], arrays["y"].astype(np.int64)
    test = held_out(len(y), y)
    moments = Moments(x.shape[1])
    moments.add(x[~test])
    shape, normalisation = (1, 8, 8), moments.normalisation(groups=1)
    parts = {"train": ~test, "test": test}
    splits = {
        name: examples_of(shape, x[rows], y[rows], normalisation) for name, rows in parts.items()
    }
    classes = tuple(str(digit) for digit in range(10))
    return Dataset(
        splits, CLASSIFICATION, shape, len(classes), classes, "digits", "digits", *normalisation[:2]
    )


def _nearest(path: Path) -> str:
    if not path.parent.is_dir():
        return f": the folder {path.parent} does not exist. Check the path."
    near = difflib.get_close_matches(path.name, os.listdir(path.parent), 1, 0.75)
    if near:
        return f"; did you mean {path.with_name(near[0])}?"
    return ". Make it with `istmpi prepare`, or use the built-in digits."
