"""The data of the benchmarks on small images: some of the images, of all classes, in the size that is asked for."""

import io
import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.controls.small_images import prepare
from istmpi.data.sources import open_dataset


def test_one_in_so_many_images_is_prepared_half_as_large(tmp_path, monkeypatch):
    images = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    with tarfile.open(tmp_path / "raw.tar", "w") as raw:
        for split, count in ("train", 40), ("test", 20):
            for label in "ab":
                for number in range(count):
                    content = io.BytesIO()
                    images.fromarray(np.full((8, 8, 3), number, np.uint8)).save(content, "PNG")
                    entry = tarfile.TarInfo(f"{split}/{label}/{number:02}.png")
                    entry.size = content.tell()
                    content.seek(0)
                    raw.addfile(entry, content)
    prepare(tmp_path / "raw.tar", tmp_path / "some.h5", 4, slice(None, None, 5), slice(None, None, 5))
    data = open_dataset(str(tmp_path / "some.h5"))
    assert data.shape == (3, 4, 4) and data.classes == ("a", "b")
    assert np.bincount(data.train.labels()).tolist() == [8, 8] and np.bincount(data.test.labels()).tolist() == [4, 4]
