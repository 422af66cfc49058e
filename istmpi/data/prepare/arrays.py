"""NumPy arrays: one .npz, or .npy files side by side."""

import numpy as np

from istmpi.data.arrays import load_arrays
from istmpi.data.holdout import ONE_IN_FIVE
from istmpi.data.labels import read_labels
from istmpi.data.prepare.archive import Archive
from istmpi.data.prepare.files import Decoder
from istmpi.data.prepare.material import Material, slices
from istmpi.data.sources import split_arrays
from istmpi.errors import DataError
from istmpi.tasks import CLASSIFICATION


def read(archive: Archive, decoder: Decoder, *, task: str | None = None) -> Material:
    """x [n, ...] as float32, or as uint8 where it is; y as ``read_labels`` says, ``task`` where it cannot know.

    The arrays are named x_train, y_train, x_test and y_test (or train_x, ...; or x and y, of which one in five examples
    is for testing), in one .npz or as .npy files. float32 rows of plain features are normalised one by one; bytes and
    rows with more axes, whose features are alike, by one mean and deviation.
    """
    arrays = _load(archive)
    splits = split_arrays(arrays, str(archive.path))
    if "x" in arrays and len(splits["train"][0]) < len(arrays["x"]):
        decoder.split = ONE_IN_FIVE
    raw = {split: np.asarray(y) for split, (_, y) in splits.items()}
    task, classes, labels = read_labels(raw, task, str(archive.path), notes=decoder.notes)
    outputs = len(classes) if task == CLASSIFICATION else labels["train"].shape[1]
    x = splits["train"][0]
    shape = x.shape[1:]
    dtype = np.dtype(np.uint8 if x.dtype == np.uint8 else np.float32)
    groups = shape[0] if len(shape) == 1 and dtype != np.uint8 else 1
    counts = {split: len(y) for split, y in labels.items()}
    blocks = slices({split: (splits[split][0], y) for split, y in labels.items()})
    return Material(task, shape, outputs, classes, dtype, groups, counts, blocks)


def _load(archive: Archive) -> dict[str, np.ndarray]:
    archives = [name for name in archive.names if name.endswith(".npz")]
    if len(archives) > 1:
        raise DataError(f"{archive.path} has {len(archives)} .npz files; give one of them.")
    arrays = {}
    for name in archives or [name for name in archive.names if name.endswith(".npy")]:
        with archive.open(name) as file:
            for key, array in load_arrays(file, name).items():
                arrays[key or name.rpartition("/")[2].removesuffix(".npy")] = array
    return arrays
