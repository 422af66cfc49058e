"""The prepared file: what is written is read, complete or not at all; damage is named."""

import random
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from batches import examples_of
from damage import damaged, data_as_version_1, data_contents, flip
from damaging import a_huge_dataset, a_link, another_layout, values_elsewhere

from istmpi.data import hdf5
from istmpi.data.dense.split import build_material
from istmpi.data.hdf5 import open_prepared
from istmpi.data.writer import write as write_file
from istmpi.errors import DataError

X = np.random.default_rng(0).normal(5, 3, (30, 6)).astype(np.float32)
Y = np.arange(30) % 3


def made(x=X, y=Y, **changes):
    values = {
        "source": "made up",
        "task": "classification",
        "splits": {"train": (x[:20], y[:20]), "test": (x[20:], y[20:])},
        "classes": ("a", "b", "ç"),
        "dtype": np.dtype(np.float32),
        "groups": 6,
        "skipped": ["a.png", "b.png"],
    }
    return build_material(**(values | changes))


def write(path, x=X, y=Y, **changes):
    write_file("arrays", made(x, y, **changes), path)
    return path


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "data.h5")


def test_what_is_written_is_read(file):
    data = open_prepared(file)
    assert (data.features, data.outputs, data.classes) == (6, 3, ("a", "b", "ç"))
    assert (data.task, data.source, data.shape) == ("classification", "made up", (6,))
    assert (len(data.train), len(data.test)) == (20, 10)
    rows = np.array([19, 0, 7])
    x, y = examples_of(data.train, rows)
    assert x.dtype == np.float32 and x.flags.c_contiguous and y.dtype == np.int64
    np.testing.assert_allclose(x, (X[rows] - X[:20].mean(0)) / X[:20].std(0), rtol=1e-5, atol=1e-6)
    assert y.tolist() == Y[rows].tolist() and data.test.labels().tolist() == Y[20:].tolist()
    examples_of(data.train, rows)[0][:] = 0
    np.testing.assert_array_equal(examples_of(data.train, rows)[0], x)  # they are copies
    with h5py.File(file, "r+") as again:  # the file is not held open
        again.attrs["source"] = "changed"


def test_bytes_stay_bytes_and_groups_are_normalised_together(tmp_path):
    x = np.random.default_rng(1).integers(0, 256, (30, 6), dtype=np.uint8)
    path = write(tmp_path / "data.h5", x.reshape(30, 2, 3), dtype=np.dtype(np.uint8), groups=2)
    data, channels = open_prepared(path), x[:20].reshape(20, 2, 3)
    assert data.train.x.dtype == np.uint8
    np.testing.assert_allclose(data.mean[::3], channels.mean((0, 2)), rtol=1e-6)
    np.testing.assert_allclose(data.std[::3], channels.std((0, 2)), rtol=1e-6)
    np.testing.assert_array_equal(examples_of(data.train, [4])[0], (x[4:5].astype(np.float32) - data.mean) / data.std)


def damage(file, edit):
    with h5py.File(file, "r+") as opened:
        edit(opened)


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda f: f.attrs.__delitem__("format"), "not prepared data"),
        (lambda f: f.attrs.__setitem__("version", 9), "has format version 9; this istmpi reads versions 1 and 2"),
        (lambda f: f.attrs.__setitem__("task", "art"), "has task 'art'"),
        (lambda f: f.attrs.__delitem__("shape"), "has no attribute shape"),
        (lambda f: f.attrs.__setitem__("test", 0), "have changed since saving"),
        (lambda f: f.__delitem__("train/y"), "has no dataset train/y"),
        (lambda f: f.__delitem__("classes"), "damaged: classes is missing"),
        (lambda f: f["train/y"].__setitem__(5, 3), "damaged: train/y, rows 0 to 19: the checksum differs"),
    ],
)
def test_damage_is_named(file, istmpi_command, edit, message):
    damage(file, edit)
    with pytest.raises(DataError, match=message) as caught:
        open_prepared(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)
    code, out, err = istmpi_command("data", "verify", file)
    assert code == 2 and str(file) in out and len(err.splitlines()) == 1


def test_whatever_is_done_to_a_file_is_refused_or_leaves_it_what_it_was(file, tmp_path):
    assert len(damaged(file, tmp_path, data_contents, 12, 150)) > 25


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("edit", [a_link, values_elsewhere, another_layout, a_huge_dataset])
def test_without_checksums_too_no_link_is_followed_and_rows_lie_in_one_piece(file, edit, seed):
    """A link may lead to a pipe, and the shape of a dataset in chunks may claim any size."""
    damage(file, data_as_version_1)
    damage(file, lambda opened: edit(opened, random.Random(seed)))
    message = "is a link|another file|virtual|not stored contiguously|has no dataset"
    with pytest.raises(DataError, match=message) as refused:
        open_prepared(file)
    assert str(file) in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_of_version_1_is_read_and_said_to_have_no_checksums(file, istmpi_command, answer):
    expected = data_contents(file)
    assert istmpi_command("data", "verify", file) == (0, f"{file}: valid\n", "")
    damage(file, data_as_version_1)
    assert data_contents(file) == expected
    assert "no checksums (format version 1); prepare it again" in answer("data", "verify", file)


@pytest.fixture
def wide(tmp_path):
    x, y = np.random.default_rng(1).normal(size=(60, 1600)).astype(np.float32), np.zeros(60, int)
    return write(tmp_path / "wide.h5", groups=1, splits={"train": (x[:50], y[:50]), "test": (x[50:], y[50:])})


@pytest.mark.parametrize("kept", [0, 2**30], ids=["large", "small"])
def test_a_damaged_block_is_noticed_when_a_row_of_it_is_read(wide, istmpi_command, monkeypatch, kept):
    monkeypatch.setattr(hdf5, "KEPT", kept)
    flip(wide, "train/x", 27 * 1600 * 4 + 5)  # row 27 is in block 2, rows 20 to 29
    split = open_prepared(wide).train
    examples_of(split, np.arange(20))
    examples_of(split, np.arange(30, 50)[::-1])
    message = f"{wide} is damaged: train/x, rows 20 to 29: the checksum differs."
    for rows in ([29], [20, 0]):
        with pytest.raises(DataError, match=f"^{message}"):
            examples_of(split.with_normalisation(None), np.array(rows))
    code, out, err = istmpi_command("data", "verify", wide)
    assert (code, out, err) == (2, f"{message}\n", "istmpi: 1 of 1 file cannot be used.\n")


# ---- what a process has of a mapped file in its own memory

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is mapped")
COUNT, FEATURES = 400, 2**15


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(0).integers(0, 256, (COUNT, FEATURES), dtype=np.uint8)


@pytest.fixture(scope="module")
def images(tmp_path_factory, pixels):
    """13 MB of images."""
    path = tmp_path_factory.mktemp("images") / "data.h5"
    x = pixels.reshape(-1, 2, 128, 128)
    splits = {"train": (x, np.arange(COUNT) % 2), "test": (x[:2], np.arange(2))}
    write_file("images", build_material("x", "classification", splits, ("a", "b"), np.dtype("u1"), 2), path)
    return path


def resident(path):
    """Bytes of a file that this process has mapped into its memory at present."""
    total, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            here = line.endswith(str(path))
        elif here and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


@ON_LINUX
@pytest.mark.parametrize("kept", [0, 2**30], ids=["large", "small"])
def test_of_a_large_file_a_process_keeps_the_last_rows_alone(images, pixels, monkeypatch, kept):
    """The system maps up to 2 MB around each byte that is read."""
    monkeypatch.setattr(hdf5, "KEPT", kept)
    train = open_prepared(images).train.with_normalisation(None)
    generator, found = np.random.default_rng(1), []
    for number, rows in enumerate(generator.permutation(2 * COUNT).reshape(-1, 1) % COUNT):
        np.testing.assert_array_equal(train.features(rows), pixels[rows])
        if number % 40 == 39:
            found.append(resident(images))
    assert found[-1] >= COUNT * FEATURES if kept else max(found) < COUNT * FEATURES / 3
