"""CIFAR-10 and CIFAR-100 as their authors publish them, binary or as Python pickles.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
"""

from typing import BinaryIO

import numpy as np

from istmpi.data.dense.material import Material, slices
from istmpi.data.files.archive import Archive
from istmpi.data.files.pickles import PickleError, read_pickle
from istmpi.errors import DataError
from istmpi.tasks import CLASSIFICATION

SHAPE = (3, 32, 32)
PIXELS = 3072

# Training files, test file, file of class names, and (binary) the bytes of labels before each image, the last of which
# is the class, or (Python) the keys of the labels and of the class names.
_BINARY = (
    ([f"data_batch_{number}.bin" for number in range(1, 6)], "test_batch.bin", "batches.meta.txt", 1),
    (["train.bin"], "test.bin", "fine_label_names.txt", 2),
)
_PYTHON = (
    ([f"data_batch_{number}" for number in range(1, 6)], "test_batch", "batches.meta", (b"labels", b"label_names")),
    (["train"], "test", "meta", (b"fine_labels", b"fine_label_names")),
)


def recognised(archive: Archive) -> bool:
    """Whether the names of the files are those of a CIFAR layout, all of them in one folder."""
    return any(_find(archive, layout) is not None for layout in _BINARY + _PYTHON)


def read(archive: Archive) -> Material:
    """Images [3, 32, 32] uint8; the fine labels of CIFAR-100."""
    for layouts, load, names_of in ((_BINARY, _load_binary, _names_binary), (_PYTHON, _load_python, _names_python)):
        for layout in layouts:
            if (paths := _find(archive, layout)) is None:
                continue
            *train, test, meta = paths
            with archive.open(meta) as file:
                classes = names_of(file, meta, layout[3])
            parts = {path: _loaded(archive, path, load, layout[3], len(classes)) for path in (*train, test)}
            x, y = (np.concatenate(arrays) for arrays in zip(*(parts[path] for path in train)))
            splits = {"train": (x, y), "test": parts[test]}
            counts = {split: len(labels) for split, (_, labels) in splits.items()}
            dtype = np.dtype(np.uint8)
            return Material(CLASSIFICATION, SHAPE, len(classes), classes, dtype, 3, counts, slices(splits))
    raise AssertionError("call read only where recognised")


def _find(archive: Archive, layout: tuple) -> list[str] | None:
    """The paths of a layout's files, training files first, or None unless all are there."""
    names = [*layout[0], layout[1], layout[2]]
    for name in archive.names:
        folder, slash, file = name.rpartition("/")
        if file == layout[2]:
            paths = [folder + slash + wanted for wanted in names]
            return paths if set(paths) <= set(archive.names) else None
    return None


def _loaded(archive: Archive, path: str, load: object, detail: object, classes: int) -> tuple[np.ndarray, np.ndarray]:
    with archive.open(path) as file:
        x, y = load(file, path, detail)
    if len(y) == 0 or x.shape != (len(y), PIXELS):
        raise DataError(f"{path}: pixels {x.shape} of {x.dtype} and {len(y)} labels are not CIFAR's. Copy it again.")
    for row, label in enumerate(y):
        # True is 1 for Python, and 0.5 would become 0 on its way into an array.
        if type(label) is not int or not 0 <= label < classes:
            shown = label if isinstance(label, int | float) else f"of {type(label).__name__}"
            raise DataError(
                f"{path}: the label of image {row} is {shown}; it must be a whole number from 0 to {classes - 1}. "
                "Download it again."
            )
    return x, np.array(y, np.int64)


def _load_binary(file: BinaryIO, path: str, label_bytes: int) -> tuple[np.ndarray, list[object]]:
    content = np.frombuffer(file.read(), dtype=np.uint8)
    if len(content) % (label_bytes + PIXELS):
        raise DataError(f"{path} is {len(content)} bytes, no multiple of {label_bytes + PIXELS}. Download it again.")
    records = content.reshape(-1, label_bytes + PIXELS)
    return records[:, label_bytes:], records[:, label_bytes - 1].tolist()


def _names_binary(file: BinaryIO, path: str, label_bytes: int) -> tuple[str, ...]:
    return tuple(file.read().decode("utf-8", errors="replace").split())


def _load_python(file: BinaryIO, path: str, keys: tuple[bytes, bytes]) -> tuple[np.ndarray, list[object]]:
    batch = _unpickle(file, path, {b"data": np.ndarray, keys[0]: list})
    return batch[b"data"], batch[keys[0]]


def _names_python(file: BinaryIO, path: str, keys: tuple[bytes, bytes]) -> tuple[str, ...]:
    names = _unpickle(file, path, {keys[1]: list})[keys[1]]
    if not all(isinstance(name, bytes) for name in names):
        raise DataError(f"{path} is not one of CIFAR's pickles: a class's name is no text. Download it again.")
    return tuple(name.decode("utf-8", errors="replace") for name in names)


def _unpickle(file: BinaryIO, path: str, wanted: dict[bytes, type]) -> dict[bytes, object]:
    """A pickled dictionary that has the ``wanted`` keys with values of these types; DataError for anything else."""
    try:
        content = read_pickle(file)
    except PickleError as error:
        raise DataError(f"{path} is not one of CIFAR's pickles: {error}. Download it again.") from error
    for key, kind in wanted.items():
        if not isinstance(content, dict) or not isinstance(content.get(key), kind):
            shown = key.decode("latin-1")
            raise DataError(
                f"{path} is not one of CIFAR's pickles: it has no {kind.__name__} {shown}. Download it again."
            )
    return content
