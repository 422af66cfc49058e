"""CIFAR-10 and CIFAR-100 as their authors publish them, binary or as Python pickles.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
"""

from dataclasses import dataclass

import numpy as np

from istmpi.data.dense.file import material_of
from istmpi.data.files.archive import Archive
from istmpi.data.files.pickles import read_pickle
from istmpi.data.writer import Material
from istmpi.errors import DataError
from istmpi.foreign import reading
from istmpi.tasks import CLASSIFICATION

SHAPE = (3, 32, 32)
PIXELS = 3072
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


@dataclass(frozen=True)
class Layout:
    """The names of the files; the bytes of a binary record's labels, the last of them the class, or keys in pickles."""

    train: tuple[str, ...]
    test: str
    names: str
    label_bytes: int = 0
    keys: tuple[bytes, bytes] = (b"", b"")


LAYOUTS = (
    Layout(tuple(f"{name}.bin" for name in BATCHES), "test_batch.bin", "batches.meta.txt", 1),
    Layout(("train.bin",), "test.bin", "fine_label_names.txt", 2),
    Layout(BATCHES, "test_batch", "batches.meta", keys=(b"labels", b"label_names")),
    Layout(("train",), "test", "meta", keys=(b"fine_labels", b"fine_label_names")),
)


def layout_of(archive: Archive) -> tuple[Layout, str] | None:
    """Return the layout of CIFAR whose files are all in one folder, and that folder."""
    for layout in LAYOUTS:
        names = [name for name in archive.names if name.rpartition("/")[2] == layout.names]
        folder = names[0].removesuffix(layout.names) if names else ""
        if names and {folder + name for name in (*layout.train, layout.test)} <= {*archive.names}:
            return layout, folder
    return None


def read(archive: Archive, place: tuple[Layout, str]) -> Material:
    """Images [3, 32, 32] uint8; the fine labels of CIFAR-100."""
    layout, folder = place
    files = dict(archive.read([folder + name for name in (*layout.train, layout.test, layout.names)]))
    names = _classes(folder + layout.names, files[folder + layout.names], layout)
    parts = [_batch(folder + name, files[folder + name], layout, len(names)) for name in (*layout.train, layout.test)]
    train = tuple(np.concatenate(arrays) for arrays in zip(*parts[:-1]))
    splits = {"train": train, "test": parts[-1]}
    return material_of("images", archive.source, CLASSIFICATION, splits, names, np.dtype(np.uint8), 3)


def _classes(path: str, content: bytes, layout: Layout) -> tuple[str, ...]:
    if layout.label_bytes:
        return tuple(content.decode("utf-8", errors="replace").split())
    names = _unpickled(path, content, {layout.keys[1]: list})[layout.keys[1]]
    if not all(isinstance(name, bytes) for name in names):
        raise DataError(f"{path} is not one of CIFAR's pickles: a class's name is no text. Download it again.")
    return tuple(name.decode("utf-8", errors="replace") for name in names)


def _batch(path: str, content: bytes, layout: Layout, classes: int) -> tuple[np.ndarray, np.ndarray]:
    if width := layout.label_bytes and layout.label_bytes + PIXELS:
        if len(content) % width:
            raise DataError(f"{path} is {len(content)} bytes, no multiple of {width}. Download it again.")
        records = np.frombuffer(content, np.uint8).reshape(-1, width)
        x, y = records[:, layout.label_bytes :], records[:, layout.label_bytes - 1].tolist()
    else:
        batch = _unpickled(path, content, {b"data": np.ndarray, layout.keys[0]: list})
        x, y = batch[b"data"], batch[layout.keys[0]]
    if len(y) == 0 or x.shape != (len(y), PIXELS) or x.dtype != np.uint8:
        raise DataError(f"{path}: pixels {x.shape} of {x.dtype} and {len(y)} labels are not CIFAR's. Copy it again.")
    labels = np.array(y)
    if labels.dtype.kind != "i" or not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(f"{path}: its labels must be whole numbers from 0 to {classes - 1}. Download it again.")
    return x.reshape(-1, *SHAPE), labels.astype(np.int64)


def _unpickled(path: str, content: bytes, kinds: dict[bytes, type]) -> dict[bytes, object]:
    with reading(f"{path} is not one of CIFAR's pickles", "Download it again.", ValueError):
        values = read_pickle(content)
        for key, kind in kinds.items():
            if not isinstance(values, dict) or not isinstance(values.get(key), kind):
                raise ValueError(f"it has no {kind.__name__} {key.decode()}")
        return values
