"""NumPy arrays: one .npz, or .npy files side by side."""

from math import prod

import numpy as np

from istmpi.data.dense.file import material_of
from istmpi.data.files.archive import Archive
from istmpi.data.files.decoder import Decoder
from istmpi.data.files.notes import first_of
from istmpi.data.files.npz import convention_of, load_arrays, looks_channels_last, split_arrays
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
    source, notes = str(archive.path), decoder.notes
    if channels not in (None, *CHANNELS):
        raise ConfigError(f"--channels {channels}: give {' or '.join(CHANNELS)}.")
    arrays = _load(archive)
    splits, names = split_arrays(arrays, source)
    if "" in names:
        decoder.split = ONE_IN_FIVE
    for split, taken in names.items():
        notes.assume(f"{' and '.join(taken)}: " + (f"the {split} split" if split else "no splits, drawn here"))
    if rest := sorted(arrays.keys() - {name for pair in names.values() for name in pair}):
        notes.leave_out(f"{counted(len(rest), 'array')}: {first_of(rest)}")
    task, classes, labels = read_labels({split: y for split, (_, y) in splits.items()}, task, source, notes=notes)
    if channels == "last":
        notes.reading["channels"] = channels
    examples = {split: channels_first(x, channels, source) for split, (x, _) in splits.items()}
    shape = examples["train"].shape[1:]
    types = {split: x.dtype for split, x in examples.items()}
    notes.reading |= convention_of(types.values())
    of_bytes = {*types.values()} == {np.dtype(np.uint8)}
    dtype = np.dtype(np.uint8 if of_bytes else np.float32)
    if len({*types.values()}) > 1:
        notes.assume(f"x is {', '.join(f'{kind} in {split}' for split, kind in types.items())}: all taken for {dtype}")
    groups = shape[0] if len(shape) == 1 and not of_bytes else 1
    if groups == 1 < prod(shape):
        why = "bytes" if of_bytes else f"examples of {' x '.join(map(str, shape))}"
        notes.assume(f"x has {why}: all features have one mean and deviation (columns of floats have their own)")
    parts = {split: (examples[split], y) for split, y in labels.items()}
    return material_of("arrays", archive.source, task, parts, classes, dtype, groups)


def channels_first(x: np.ndarray, channels: str | None, source: str) -> np.ndarray:
    shown = " x ".join(map(str, x.shape[1:]))
    if channels is None and looks_channels_last(x.shape[1:]):
        raise DataError(
            f"{source}: x has examples of {shown}, which is {x.shape[1]} channels of {x.shape[2]} x {x.shape[3]}. Give "
            f"--channels last where they are images of {x.shape[1]} x {x.shape[2]}, else --channels first."
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
