"""Reads arrays from one .npz or from .npy files, and the MNIST family in LeCun's idx format, plain
or gzipped."""

import os
import re
import struct
import zipfile
from collections.abc import Iterable
from math import prod
from typing import BinaryIO

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.class_list import class_list
from istmpi.data.dataset import SPLITS, WORDS
from istmpi.data.decoder import Decoder, Notes, first_of
from istmpi.data.dense.split import material_of
from istmpi.data.holdout import ONE_IN_FIVE, TestSplit, with_test
from istmpi.data.labels import read_labels
from istmpi.data.writer import Material
from istmpi.errors import ConfigError, DataError
from istmpi.foreign import printable, reading
from istmpi.tasks import CLASSIFICATION
from istmpi.units import counted

CHANNELS = ("first", "last")
Pair = tuple[np.ndarray, np.ndarray]


def read(
    archive: Archive,
    decoder: Decoder,
    *,
    task: str | None = None,
    channels: str | None = None,
    classes: str | None = None,
) -> Material:
    """Read arrays. x [n, ...] is stored as uint8 if all splits are uint8, otherwise as float32.

    ``channels`` is the place of an image's channels, ``first`` or ``last``. Raises DataError if
    ``channels`` is None and the last axis seems to be the channels.
    """
    if channels not in (None, *CHANNELS):
        raise ConfigError(f"--channels {channels}: give {' or '.join(CHANNELS)}.")
    arrays = _load(archive)
    if not any("train" in name.lower() for name in arrays):
        decoder.split = ONE_IN_FIVE
    listed = class_list(classes)
    return material_of_arrays(arrays, str(archive.path), decoder.notes, task, channels, listed)


def material_of_arrays(
    arrays: dict[str, np.ndarray],
    source: str,
    notes: Notes,
    task: str | None = None,
    channels: str | None = None,
    listed: tuple[str, ...] | None = None,
) -> Material:
    pairs, names = split_arrays(arrays, source)
    if rest := sorted(arrays.keys() - names):
        notes.leave_out(f"{counted(len(rest), 'array')}: {first_of(rest)}")
    task, classes, labels = read_labels(
        {split: y for split, (_, y) in pairs.items()}, task, source, notes=notes, classes=listed
    )
    splits = {
        split: (_channels_first(x, channels, source), labels[split])
        for split, (x, _) in pairs.items()
    }
    notes.reading |= {"channels": channels} if channels == "last" else {}
    types = [x.dtype for x, _ in splits.values()]
    notes.reading |= convention_of(types)
    of_bytes, shape = {*types} == {np.dtype(np.uint8)}, splits["train"][0].shape[1:]
    groups = shape[0] if len(shape) == 1 and not of_bytes else 1
    return material_of(
        source, task, splits, classes, np.dtype(np.uint8 if of_bytes else np.float32), groups
    )


def _channels_first(x: np.ndarray, channels: str | None, source: str) -> np.ndarray:
    shown = " x ".join(map(str, x.shape[1:]))
    if channels is None and x.ndim == 4 and x.shape[3] <= 4 < x.shape[1]:
        raise DataError(
            f"{source}: x has examples of {shown}, which is {x.shape[1]} channels of {x.shape[2]} "
            "x "
            f"{x.shape[3]}. Prepare images of {x.shape[1]} x {x.shape[2]} with --channels last, "
            "others with "
            "--channels first."
        )
    if channels is not None and x.ndim != 4:
        raise DataError(
            f"{source}: x has examples of {shown}, but --channels needs three axes. Leave it out."
        )
    return np.moveaxis(x, 3, 1) if channels == "last" else x


def _load(archive: Archive) -> dict[str, np.ndarray]:
    archives = [name for name in archive.names if name.endswith(".npz")]
    if len(archives) > 1:
        raise DataError(f"{archive.path} has {len(archives)} .npz files; give one.")
    names = archives or [name for name in archive.names if name.endswith(".npy")]
    if not names:
        raise DataError(
            f"{archive.path} holds {', '.join(archive.names[:3])}, but no .npz or .npy. Save its "
            "arrays with "
            "np.savez as x_train, y_train, x_test and y_test, or x and y."
        )
    arrays = {}
    for name in names:
        with archive.open(name) as file:
            for key, array in load_arrays(file, name).items():
                arrays[key or name.rpartition("/")[2].removesuffix(".npy")] = array
    return arrays


def load_arrays(file: BinaryIO, name: str) -> dict[str, np.ndarray]:
    """Return an .npz's arrays by name; a .npy's array is memory-mapped and named ``""``. DataError
    if damaged."""
    with reading(f"{name} cannot be read as a NumPy file", "Write it with np.savez.", Exception):
        if not zipfile.is_zipfile(file):
            return {"": _map(file)}
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            if twice := [key for key in arrays.files if arrays.files.count(key) > 1]:
                raise ValueError(f"it has two members {printable(twice[0])}")
            held = {printable(key): arrays[key] for key in arrays.files}
            if odd := [key for key, array in held.items() if not isinstance(array, np.ndarray)]:
                raise ValueError(f"its member {odd[0]} is not an array")
            return held


def array_names(split: str) -> list[tuple[str, str]]:
    """Return the names that a split's arrays of examples and of labels may have, in lower case."""
    return [
        pair
        for part in WORDS[split]
        for pair in ((f"x_{part}", f"y_{part}"), (f"{part}_x", f"{part}_y"))
    ]


def with_test_drawn(
    arrays: dict[str, np.ndarray], source: str, test: TestSplit
) -> dict[str, np.ndarray]:
    by_name = {name.lower(): name for name in arrays}
    if not test.is_drawn(source, any(x in by_name for x, _ in array_names("test"))):
        return arrays
    pairs = ("x", "y"), *array_names("train")
    names = next(
        ([by_name[name] for name in pair] for pair in pairs if by_name.keys() >= {*pair}), ()
    )
    if not names or len(arrays[names[0]]) != len(arrays[names[1]]):
        return arrays  # `split_arrays` refuses them
    x, y = (arrays[name] for name in names)
    arrays = {name: array for name, array in arrays.items() if name not in names}
    train, rows = test.indices(len(y), y if y.ndim == 1 and y.dtype.kind in "iub" else None)
    return arrays | {"x_train": x[train], "y_train": y[train], "x_test": x[rows], "y_test": y[rows]}


def split_arrays(arrays: dict[str, np.ndarray], source: str) -> tuple[dict[str, Pair], set[str]]:
    """Return (x [n, ...], y [n, ...]) per split, and the names of the arrays used. Raises
    DataError.

    Arrays are called x_train and y_train, or train_x and train_y, in any letter case. If there are
    only x and y, one example in five is for testing.
    """
    by_name: dict[str, str] = {}
    for name in arrays:
        if (other := by_name.setdefault(name.lower(), name)) != name:
            raise DataError(f"{source} has both {other} and {name}. Keep one of them.")
    names: dict[str, list[str]] = {}
    for split in SPLITS:
        for x, y in array_names(split):
            if x in by_name and y in by_name:
                names.setdefault(split, [by_name[x], by_name[y]])
    if not names and "x" in by_name and "y" in by_name:
        names[""] = [by_name["x"], by_name["y"]]
    elif not names.keys() >= {"train", "test"}:
        held = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(
            f"{source} holds {held}; it needs x_train, y_train, x_test and y_test, or x and y."
        )
    pairs = {split: (arrays[x], arrays[y]) for split, (x, y) in names.items()}
    shape, types = next(iter(pairs.values()))[0].shape[1:], {x.dtype for x, _ in pairs.values()}
    for x, y in pairs.values():
        of_one_form = x.ndim >= 2 and x.shape[1:] == shape and 0 not in shape + y.shape[1:]
        if (
            not of_one_form
            or y.ndim not in (1, 2)
            or len(x) != len(y)
            or x.dtype.kind not in "fiub"
        ):
            raise DataError(
                f"{source}: x {x.shape} of {x.dtype} and y {y.shape} do not fit. Give numbers [n, "
                "...] and n "
                "labels, with one example shape in all splits."
            )
    if len({"bytes" if dtype == np.uint8 else dtype.kind == "b" for dtype in types}) > 1:
        raise DataError(
            f"{source}: x is {' and '.join(sorted(map(str, types)))}; bytes (0 to 255), flags (0, "
            "1) and other numbers "
            "would be mixed. Save all splits with the same type and scale."
        )
    return with_test(pairs, source), {name for pair in names.values() for name in pair}


def convention_of(dtypes: Iterable[np.dtype]) -> dict[str, str]:
    dtypes = {*dtypes}
    if dtypes == {np.dtype(np.uint8)}:
        return {"type": "bytes"}
    return {"type": "floats"} if any(dtype.kind == "f" for dtype in dtypes) else {}


def _map(file: BinaryIO) -> np.ndarray:
    file.seek(0)
    version = np.lib.format.read_magic(file)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read(file)
    missing = prod(shape) * dtype.itemsize - (os.fstat(file.fileno()).st_size - file.tell())
    if dtype.hasobject or missing > 0 or min(shape, default=0) < 0:
        raise ValueError(
            f"it holds objects, or is {missing:,} bytes shorter than its header states"
        )
    if 0 in shape or not dtype.itemsize:
        return np.empty(shape, dtype)
    return np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")


_IDX_FILE = re.compile(r"(?:.*[/-])?(train|t10k|test)-(images|labels)[.-]idx[13]-ubyte(?:\.gz)?")


def read_idx(archive: Archive, decoder: Decoder) -> Material:
    """Read images [1, height, width] uint8; one mean and one deviation normalise all pixels.

    Files have the names of MNIST's four files. ``test`` may replace ``t10k``; a prefix and ".gz"
    are allowed.
    """
    files, x, raw = _find_idx(archive), {}, {}
    for split in ("train", "test"):
        images, labels = files[split, "images"], files[split, "labels"]
        x[split], raw[split] = (
            _idx_array(archive, images, axes=3)[:, np.newaxis],
            _idx_array(archive, labels, axes=1),
        )
        if len(raw[split]) != len(x[split]) or len(raw[split]) == 0:
            raise DataError(
                f"{images} has {len(x[split])} images, but {labels} has {len(raw[split])} labels; "
                "the numbers "
                "must be equal, and at least 1. Download them again."
            )
    shape = x["train"].shape[1:]
    if x["test"].shape[1:] != shape:
        raise DataError(
            f"{archive.path}: images are {shape[1:]} in train and {x['test'].shape[2:]} in test."
        )
    names = (
        f"{' and '.join(files[split, what] for what in ('images', 'labels'))}: {split}"
        for split in x
    )
    decoder.notes.assume(f"splits from file names: {', '.join(names)}")
    _, classes, labels = read_labels(raw, CLASSIFICATION, str(archive.path))
    splits = {split: (x[split], labels[split]) for split in x}
    return material_of(archive.source, CLASSIFICATION, splits, classes, np.dtype(np.uint8), 1)


def _find_idx(archive: Archive) -> dict[tuple[str, str], str]:
    files: dict[tuple[str, str], str] = {}
    for name in archive.names:
        if match := _IDX_FILE.fullmatch(name):
            key = "train" if match[1] == "train" else "test", match[2]
            if key in files:
                raise DataError(
                    f"{archive.path} has both {files[key]} and {name}; keep one data set per "
                    "folder."
                )
            files[key] = name
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        prefix, what, _ = name.split("-")
        if (prefix.replace("t10k", "test"), what) not in files:
            raise DataError(f"{archive.path} has no {name}-ubyte[.gz]; idx needs all four files.")
    return files


def _idx_array(archive: Archive, name: str, axes: int) -> np.ndarray:
    with archive.stream(name) as stream:
        header = stream.read(4 + 4 * axes)
        if len(header) < 4 + 4 * axes or struct.unpack(">HBB", header[:4]) != (0, 8, axes):
            raise DataError(
                f"{name} is not an idx file of unsigned bytes with {axes} axes (it starts "
                f"{header[:4].hex(' ')})."
            )
        lengths = struct.unpack(f">{axes}I", header[4:])
        if 0 in lengths[1:]:
            raise DataError(
                f"{name} has images of {' x '.join(map(str, lengths[1:]))} pixels; at least one is "
                "required."
            )
        content = stream.read(prod(lengths) + 1)
    if len(content) != prod(lengths):
        few = "fewer" if len(content) < prod(lengths) else "more"
        raise DataError(
            f"{name} has {few} bytes than the {prod(lengths):,} that its header states. Download "
            "it again."
        )
    return np.frombuffer(content, np.uint8).reshape(lengths)
