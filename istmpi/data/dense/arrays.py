"""NumPy arrays: one .npz, or .npy files side by side."""

import numpy as np

from istmpi.data.dense.file import material_of
from istmpi.data.files.archive import Archive
from istmpi.data.files.decoder import Decoder
from istmpi.data.files.notes import Notes, first_of
from istmpi.data.files.npz import convention_of, load_arrays, split_arrays
from istmpi.data.holdout import ONE_IN_FIVE
from istmpi.data.labels import read_labels
from istmpi.data.writer import Material
from istmpi.errors import ConfigError, DataError
from istmpi.units import counted

CHANNELS = ("first", "last")


def read(archive: Archive, decoder: Decoder, *, task: str | None = None, channels: str | None = None) -> Material:
    """x [n, ...] as float32, or as uint8 where all of it is; y as ``read_labels`` says, ``task`` where it cannot know.

    float32 rows of plain features are normalised one by one; bytes and rows with more axes by one mean and deviation.
    ``channels`` says where images [n, three axes] have them, first or last: DataError where it is not given and they
    seem to come last.
    """
    if channels not in (None, *CHANNELS):
        raise ConfigError(f"--channels {channels}: give {' or '.join(CHANNELS)}.")
    arrays = _load(archive)
    if not any("train" in name.lower() for name in arrays):
        decoder.split = ONE_IN_FIVE
    return material_of_arrays(arrays, str(archive.path), decoder.notes, task, channels)


def material_of_arrays(
    arrays: dict[str, np.ndarray], source: str, notes: Notes, task: str | None = None, channels: str | None = None
) -> Material:
    pairs, names = split_arrays(arrays, source)
    if rest := sorted(arrays.keys() - names):
        notes.leave_out(f"{counted(len(rest), 'array')}: {first_of(rest)}")
    task, classes, labels = read_labels({split: y for split, (_, y) in pairs.items()}, task, source, notes=notes)
    splits = {split: (_channels_first(x, channels, source), labels[split]) for split, (x, _) in pairs.items()}
    notes.reading |= {"channels": channels} if channels == "last" else {}
    types = [x.dtype for x, _ in splits.values()]
    notes.reading |= convention_of(types)
    of_bytes, shape = {*types} == {np.dtype(np.uint8)}, splits["train"][0].shape[1:]
    groups = shape[0] if len(shape) == 1 and not of_bytes else 1
    return material_of("arrays", source, task, splits, classes, np.dtype(np.uint8 if of_bytes else np.float32), groups)


def _channels_first(x: np.ndarray, channels: str | None, source: str) -> np.ndarray:
    shown = " x ".join(map(str, x.shape[1:]))
    if channels is None and x.ndim == 4 and x.shape[3] <= 4 < x.shape[1]:
        raise DataError(
            f"{source}: x has examples of {shown}, which is {x.shape[1]} channels of {x.shape[2]} x {x.shape[3]}. "
            f"Prepare it with --channels last where they are images of {x.shape[1]} x {x.shape[2]}, else --channels "
            f"first."
        )
    if channels is not None and x.ndim != 4:
        raise DataError(f"{source}: x has examples of {shown}; --channels is for three axes. Leave it out.")
    return np.moveaxis(x, 3, 1) if channels == "last" else x


def _load(archive: Archive) -> dict[str, np.ndarray]:
    archives = [name for name in archive.names if name.endswith(".npz")]
    if len(archives) > 1:
        raise DataError(f"{archive.path} has {len(archives)} .npz files; give one of them.")
    names = archives or [name for name in archive.names if name.endswith(".npy")]
    if not names:
        raise DataError(
            f"{archive.path} holds {', '.join(archive.names[:3])}, no .npz or .npy. Save its arrays with np.savez as "
            f"x_train, y_train, x_test and y_test, or x and y."
        )
    arrays = {}
    for name in names:
        with archive.open(name) as file:
            for key, array in load_arrays(file, name).items():
                arrays[key or name.rpartition("/")[2].removesuffix(".npy")] = array
    return arrays
