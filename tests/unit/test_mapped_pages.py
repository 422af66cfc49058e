"""Reading a mapped file: what a process has of it in its own memory does not grow with the file."""

import sys
from pathlib import Path

import numpy as np
import pytest

from istmpi.data import hdf5
from istmpi.data.dense.split import build_material
from istmpi.data.hdf5 import open_prepared
from istmpi.data.writer import write
from istmpi.errors import DataError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is mapped")
COUNT, FEATURES = 800, 2**15


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(0).integers(0, 256, (COUNT, FEATURES), dtype=np.uint8)


@pytest.fixture(scope="module")
def file(tmp_path_factory, pixels):
    """26 MB of images."""
    path = tmp_path_factory.mktemp("images") / "data.h5"
    x = pixels.reshape(-1, 2, 128, 128)
    splits = {"train": (x, np.arange(COUNT) % 2), "test": (x[:2], np.arange(2))}
    write("images", build_material("x", "classification", splits, ("a", "b"), np.dtype("u1"), 2), path)
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


@pytest.mark.parametrize("kept", [0, 2**30], ids=["large", "small"])
def test_of_a_large_file_a_process_keeps_the_last_rows_alone(file, pixels, monkeypatch, kept):
    """The system maps up to 2 MB around each byte that is read."""
    monkeypatch.setattr(hdf5, "KEPT", kept)
    train = open_prepared(file).train.with_normalisation(None)
    generator, found = np.random.default_rng(1), []
    for number, rows in enumerate(generator.permutation(2 * COUNT).reshape(-1, 1) % COUNT):
        np.testing.assert_array_equal(train.features(rows), pixels[rows])
        if number % 40 == 39:
            found.append(resident(file))
    assert found[-1] >= COUNT * FEATURES if kept else max(found) < COUNT * FEATURES / 3


def test_damage_is_found_all_the_same(file, tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "KEPT", 0)
    path = tmp_path / "damaged.h5"
    content = bytearray(file.read_bytes())
    at = content.find(open_prepared(file).train.x[300].tobytes())
    content[at] ^= 1
    path.write_bytes(content)
    train = open_prepared(path).train
    train.features(np.arange(200))
    with pytest.raises(DataError, match="damaged"):
        train.features(np.arange(280, 320))
