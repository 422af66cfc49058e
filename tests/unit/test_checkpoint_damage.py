"""Whatever is wrong with a checkpoint is said in one line, by name, and never by a hang."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from damage import as_version_1, damaged
from damage import checkpoint_contents as contents
from patience import patient

from istmpi.errors import DataError
from istmpi.hdf5 import CREATION


@pytest.mark.parametrize("name, copies", [("batch", 100), ("stopped", 60), ("codistillation", 40)])
def test_whatever_is_done_to_a_file_is_refused_or_leaves_it_what_it_was(checkpoints, tmp_path, name, copies):
    """Flipped and lost bytes, edited settings, swapped datasets and more (damaging.py)."""
    assert len(damaged(checkpoints / f"{name}.h5", tmp_path, contents, 11, copies)) > (25 if copies > 40 else 15)


@pytest.fixture
def edited(checkpoints, tmp_path):
    """``edited(change)`` is the path of a copy of a checkpoint on which ``change(file)`` was done."""

    def edit(change):
        path = tmp_path / "edited.h5"
        path.write_bytes((checkpoints / "batch.h5").read_bytes())
        with h5py.File(path, "r+", **CREATION) as file:
            change(file)
        return path

    return edit


MOMENTUM = "optim/hidden1.linear.weight/momentum_buffer"


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda file: file.__delitem__("norm/labels/std"), "norm/labels/std"),
        (lambda file: file.attrs.modify("version", 3), "format version 3; this istmpi reads versions 1 and 2"),
        (lambda file: file.attrs.__setitem__("format", "other"), "not a checkpoint of istmpi"),
        (lambda file: file.attrs.__setitem__("run", b'{"modell": {}}'), "its run cannot be read"),
        (lambda file: file["model/labels.linear.weight"].attrs.modify("axes", b"labels hidden1"), "its run has"),
        (lambda file: replace(file, "norm/hidden1/std", np.ones(3, np.float32)), r"norm/hidden1/std is \(3,\)"),
        (lambda file: replace(file, "model/labels.linear.weight", np.ones((3, 11), np.float32)), r"its run has \(10,"),
        (lambda file: replace(file, MOMENTUM, None), "momentum_buffer"),
    ],
)
def test_another_structure_is_refused(edited, istmpi_command, change, message):
    path = edited(change)
    with pytest.raises(DataError, match=message) as refused:
        contents(path)
    assert "\n" not in str(refused.value)
    code, out, err = istmpi_command("checkpoint", "verify", path)
    assert code == 2 and str(path) in out and len(err.splitlines()) == 1


def set_root(name, value):
    return lambda file: file.attrs.__setitem__(name, value)


def set_in(name, key, value):
    def change(file):
        file.attrs[name] = json.dumps({**json.loads(file.attrs[name]), key: value})

    return change


ODD = {
    "a round that cannot be": set_root("round", 2**62),
    "a round that is infinite": set_root("round", np.inf),
    "no ranks": set_root("ranks", 0),
    "seconds that are no number": set_root("seconds", np.nan),
    "a loss that is empty": set_root("loss", h5py.Empty("f8")),
    "another seed": set_root("seed", 6),
    "a run that is nested": set_root("run", "[" * 20_000),
    "a run of two lines": set_root("run", '{"a": \n'),
    "a shape that is none": set_in("data", "shape", ["a"]),
}
"""Edits that no version of the format believes."""


def in_version_1(change):
    return lambda file: (as_version_1(file), change(file))


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_odd_values_are_refused(edited, change):
    """In files of version 1, too, which have no checksum of their attributes."""
    for version in (change, in_version_1(change)):
        with pytest.raises(DataError, match=r"edited\.h5(: its run| is damaged)") as refused:
            contents(edited(version))
        assert "\n" not in str(refused.value)


def test_a_file_of_version_1_is_read(edited, checkpoints, istmpi_command):
    header, *rest = contents(checkpoints / "batch.h5")
    path = edited(as_version_1)
    assert header.data.features is not None
    assert contents(path) == (dataclasses.replace(header, data=dataclasses.replace(header.data, features=None)), *rest)
    code, out, _ = istmpi_command("checkpoint", "show", path, "--json")
    assert (code, json.loads(out)["version"]) == (0, 1)


def replace(file, path, values):
    del file[path]
    if values is None:
        file.create_group(path)
    else:
        file[path] = values


def write_hdf5(path):
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda path: path.write_text("name,value\n1,2\n"), "not an HDF5 file"),
        (lambda path: path.mkdir(), "is a folder"),
        (write_hdf5, "not a checkpoint of istmpi"),
        (lambda path: path.symlink_to(path), "does not exist"),
        (lambda path: os.mkfifo(path), "does not exist"),
    ],
    ids=["text", "folder", "other HDF5", "loop", "pipe"],
)
@pytest.mark.parametrize("words", ["checkpoint show {}", "predict {} digits", "export {} --to npz"])
def test_what_is_no_checkpoint_is_refused_in_one_line(refusal, tmp_path, make, message, words):
    path = tmp_path / "file.h5"
    make(path)
    said = refusal(*(path if word == "{}" else word for word in words.split()))
    assert message in said and str(path) in said


WITHOUT_ISTMPI = """
import sys, json, zlib
for name in ("istmpi", "mpi4py", "torch"):
    sys.modules[name] = None
import h5py

recipe = {"h5py": h5py, "json": json, "zlib": zlib}
exec(sys.argv[2], recipe)
with h5py.File(sys.argv[1], "r") as file:
    assert file.attrs["format"].decode() == "istmpi-checkpoint" and file.attrs["version"] == 2
    assert json.loads(file.attrs["run"])["model"]["hidden"] == [13, 11]
    weight = file["model/hidden2.linear.weight"]
    assert weight.shape == (11, 13) and weight.attrs["axes"].decode() == "hidden2 hidden1"
    paths = []
    file.visititems(lambda path, place: paths.append(path) if isinstance(place, h5py.Dataset) else None)
    paths = [path for path in paths if not path.startswith("checksums/")]
    assert recipe["sealed"](file) and all(recipe["valid"](file, path) for path in paths)
    print(len(paths))
"""


def test_reading_needs_h5py_alone(checkpoints):
    """The recipe of docs/formats.md, in a process that cannot import istmpi, mpi4py or torch."""
    recipe = (Path(__file__).parents[2] / "docs/formats.md").read_text().split("```python\n")[1]
    command = [sys.executable, "-c", WITHOUT_ISTMPI, checkpoints / "batch.h5", recipe.partition("```")[0]]
    result = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=patient(60))
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) == 7 + 7 + 6 + 3
