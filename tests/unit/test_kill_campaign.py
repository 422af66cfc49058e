"""The campaign of kills draws runs that can be trained, of all sorts, and sees when two networks differ."""

import random

import h5py
import numpy as np

from istmpi.config import Run
from istmpi.methods import METHODS


def test_what_is_drawn_is_a_run_and_all_that_matters_is_among_it():
    from benchmarks.campaigns.kill import draw

    runs = [
        Run().override(draw(random.Random(number), number, ["direct", "mpio"])) for number in range(20 * len(METHODS))
    ]
    assert {run.method.name for run in runs} == {*METHODS}
    assert {run.optimizer.name for run in runs} == {"sgd", "adam", "adamw"}
    assert {run.model.dtype for run in runs} == {"float32", "float64"}
    assert {run.checkpoint.writer for run in runs} == {"direct", "mpio"}
    for settings in (
        {(run.method.name, run.method.optimizer_state) for run in runs},
        {(run.method.name, run.model.dropout > 0) for run in runs},
        {(run.method.name, run.train.autocast) for run in runs},
    ):
        assert len(settings) == 2 * len(METHODS), "with and without it, of each method"
    assert any(run.method.outer_momentum for run in runs)


def test_one_bit_is_a_difference(tmp_path):
    from benchmarks.campaigns.kill import differences

    for name, value in (("one", 1.0), ("other", 1.0), ("third", np.nextafter(1.0, 2))):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["model/weight"] = np.array([0.0, value])
    assert list(differences(tmp_path / "one.h5", tmp_path / "other.h5")) == []
    assert list(differences(tmp_path / "one.h5", tmp_path / "third.h5")) == ["model/weight differs"]
    with h5py.File(tmp_path / "other.h5", "a") as file:
        file["model/more"] = np.array([0.0])
    assert list(differences(tmp_path / "one.h5", tmp_path / "other.h5")) == ["model/more is in one of them"]
