"""Reads arrays from one .npz or from .npy files, and the MNIST family in LeCun's idx format, plain
or gzipped."""

import os
import re
import struct
import zipfile
from collections.abc import Collection
from math import prod
from typing import IO

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.class_list import class_list
from istmpi.data.dataset import SPLITS, WORDS
from istmpi.data.decoder import Decoder, Notes, list_first
from istmpi.data.dense.split import build_material
from istmpi.data.holdout import TestSplit, describe_drawn, ensure_test
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
    listed = class_list(classes)
    source = str(archive.path)
    material = build_from_arrays(arrays, source, decoder.notes, task, channels, listed)
    # Only x and y: `ensure_test` drew the test split.
    if not any("train" in name.lower() for name in arrays):
        decoder.split = describe_drawn(by_class=material.task == CLASSIFICATION)
    return material


def build_from_arrays(
    arrays: dict[str, np.ndarray],
    source: str,
    notes: Notes,
    task: str | None = None,
    channels: str | None = None,
    listed: tuple[str, ...] | None = None,
) -> Material:
    """Return the content of a prepared file for ``arrays`` with the names of `split_arrays`.

    The other arguments are those of `read`. Raises ConfigError or DataError.
    """
    pairs, names = split_arrays(arrays, source)
    rest = sorted(arrays.keys() - names)
    if rest:
        notes.leave_out(f"{counted(len(rest), 'array')}: {list_first(rest)}")
    raw = {split: y for split, (_, y) in pairs.items()}
    task, classes, labels = read_labels(raw, task, source, notes=notes, classes=listed)
    moved = {}
    for split, (x, _) in pairs.items():
        moved[split] = (_move_channels(x, channels, source), labels[split])
    splits = ensure_test(moved, source, by_class=task == CLASSIFICATION)
    if channels == "last":
        notes.reading["channels"] = channels
    types = {x.dtype for x, _ in splits.values()}
    notes.reading |= find_convention(types)
    shape = splits["train"][0].shape[1:]
    dtype: np.dtype = np.dtype(np.float32)
    # Columns of a table have ranges of their own; pixels of an image share one.
    groups = shape[0] if len(shape) == 1 else 1
    if types == {np.dtype(np.uint8)}:
        dtype = np.dtype(np.uint8)
        groups = 1
    return build_material(source, task, splits, classes, dtype, groups)


def _move_channels(x: np.ndarray, channels: str | None, source: str) -> np.ndarray:
    """Return images with the channels before height and width. Raises DataError if ``channels`` is
    missing or has no use."""
    shown = " x ".join(map(str, x.shape[1:]))
    # Images with channels last would train without an error, but badly.
    if channels is None and x.ndim == 4 and x.shape[3] <= 4 < x.shape[1]:
        raise DataError(
            f"{source}: x has examples of {shown}, which is {x.shape[1]} channels of {x.shape[2]} "
            f"x {x.shape[3]}. Prepare images of {x.shape[1]} x {x.shape[2]} with --channels last, "
            "others with --channels first."
        )
    if channels is not None and x.ndim != 4:
        raise DataError(
            f"{source}: x has examples of {shown}, but --channels needs three axes. Leave it out."
        )
    if channels == "last":
        return np.moveaxis(x, 3, 1)
    return x


def _load(archive: Archive) -> dict[str, np.ndarray]:
    """Return the arrays of the only .npz, or of all .npy files, by their names."""
    archives = [name for name in archive.names if name.endswith(".npz")]
    if len(archives) > 1:
        raise DataError(f"{archive.path} has {len(archives)} .npz files; give one.")
    names = archives or [name for name in archive.names if name.endswith(".npy")]
    if not names:
        raise DataError(
            f"{archive.path} holds {', '.join(archive.names[:3])}, but no .npz or .npy. Save its "
            "arrays with np.savez as x_train, y_train, x_test and y_test, or x and y."
        )
    arrays = {}
    for name in names:
        with archive.open(name) as file:
            for key, array in load_arrays(file, name).items():
                # A .npy has no name inside; its file names its array.
                arrays[key or name.rpartition("/")[2].removesuffix(".npy")] = array
    return arrays


def load_arrays(file: IO[bytes], name: str) -> dict[str, np.ndarray]:
    """Return an .npz's arrays by name; a .npy's array is memory-mapped and named ``""``. DataError
    if damaged."""
    with reading(f"{name} cannot be read as a NumPy file", "Write it with np.savez.", Exception):
        if not zipfile.is_zipfile(file):
            return {"": _map(file)}
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            for key in arrays.files:
                # Of two members with one name, Python reads the last in silence.
                if arrays.files.count(key) > 1:
                    raise ValueError(f"it has two members {printable(key)}")
            members = {printable(key): arrays[key] for key in arrays.files}
            for key, array in members.items():
                # NumPy returns the bytes of a member that is no array.
                if not isinstance(array, np.ndarray):
                    raise ValueError(f"its member {key} is not an array")
            return members


def array_names(split: str) -> list[tuple[str, str]]:
    """Return the names that a split's arrays of examples and of labels may have, in lower case."""
    names = []
    for word in WORDS[split]:
        names.append((f"x_{word}", f"y_{word}"))
        names.append((f"{word}_x", f"{word}_y"))
    return names


def draw_missing_test(
    arrays: dict[str, np.ndarray], source: str, test: TestSplit
) -> dict[str, np.ndarray]:
    """Return the arrays with a test split, drawn from x and y, if ``test`` asks for it."""
    by_name = {name.lower(): name for name in arrays}
    if not test.is_drawn(source, any(x in by_name for x, _ in array_names("test"))):
        return arrays
    pairs = [("x", "y"), *array_names("train")]
    names = next((pair for pair in pairs if by_name.keys() >= {*pair}), None)
    # `split_arrays` refuses arrays that do not fit.
    if names is None:
        return arrays
    x_name, y_name = (by_name[name] for name in names)
    x = arrays[x_name]
    y = arrays[y_name]
    if len(x) != len(y):
        return arrays
    # Only classes are balanced between the splits.
    classes = y if y.ndim == 1 and y.dtype.kind in "iub" else None
    train, rows = test.indices(len(y), classes)
    others = {name: array for name, array in arrays.items() if name not in (x_name, y_name)}
    return {
        **others,
        "x_train": x[train],
        "y_train": y[train],
        "x_test": x[rows],
        "y_test": y[rows],
    }


def split_arrays(arrays: dict[str, np.ndarray], source: str) -> tuple[dict[str, Pair], set[str]]:
    """Return (x [n, ...], y [n, ...]) per split, and the names of the arrays used. Raises
    DataError.

    Arrays are called x_train and y_train, or train_x and train_y, in any letter case. If there are
    only x and y, they are a single split "".
    """
    names = _name_pairs(arrays, source)
    pairs = {split: (arrays[x], arrays[y]) for split, (x, y) in names.items()}
    _require_fitting(pairs, source)
    used = {name for pair in names.values() for name in pair}
    return pairs, used


def _name_pairs(arrays: Collection[str], source: str) -> dict[str, tuple[str, str]]:
    """Return the names of the arrays of examples and of labels of each split; "" for no split."""
    by_name: dict[str, str] = {}
    for name in arrays:
        other = by_name.setdefault(name.lower(), name)
        if other != name:
            raise DataError(f"{source} has both {other} and {name}. Keep one of them.")
    names: dict[str, tuple[str, str]] = {}
    for split in SPLITS:
        for x, y in array_names(split):
            if x in by_name and y in by_name:
                names.setdefault(split, (by_name[x], by_name[y]))
    if not names and "x" in by_name and "y" in by_name:
        return {"": (by_name["x"], by_name["y"])}
    if not names.keys() >= {"train", "test"}:
        held = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(
            f"{source} holds {held}; it needs x_train, y_train, x_test and y_test, or x and y."
        )
    return names


def _require_fitting(pairs: dict[str, Pair], source: str) -> None:
    """Raise DataError for x and y that are no examples, or differ in form between splits."""
    first, _ = next(iter(pairs.values()))
    shape = first.shape[1:]
    for x, y in pairs.values():
        has_shape = x.ndim >= 2 and x.shape[1:] == shape and 0 not in shape + y.shape[1:]
        is_labelled = y.ndim in (1, 2) and len(x) == len(y)
        if not has_shape or not is_labelled or x.dtype.kind not in "fiub":
            raise DataError(
                f"{source}: x {x.shape} of {x.dtype} and y {y.shape} do not fit. Give numbers [n, "
                "...] and n labels, with one example shape in all splits."
            )
    types = {x.dtype for x, _ in pairs.values()}
    # Bytes from 0 to 255 and floats from 0 to 1 are the same images at different scales.
    scales = {"bytes" if dtype == np.uint8 else dtype.kind == "b" for dtype in types}
    if len(scales) > 1:
        raise DataError(
            f"{source}: x is {' and '.join(sorted(map(str, types)))}; bytes (0 to 255), flags (0, "
            "1) and other numbers would be mixed. Save all splits with the same type and scale."
        )


def find_convention(dtypes: Collection[np.dtype]) -> dict[str, str]:
    """Return what prediction must know of the types of x, as a data set's ``reading`` states it."""
    if {*dtypes} == {np.dtype(np.uint8)}:
        return {"type": "bytes"}
    if any(dtype.kind == "f" for dtype in dtypes):
        return {"type": "floats"}
    return {}


def _map(file: IO[bytes]) -> np.ndarray:
    """Map the array of a .npy file. Raises ValueError if it holds objects or ends too early."""
    file.seek(0)
    read = np.lib.format.read_array_header_2_0
    if np.lib.format.read_magic(file) == (1, 0):
        read = np.lib.format.read_array_header_1_0
    shape, fortran, dtype = read(file)
    missing = prod(shape) * dtype.itemsize - (os.fstat(file.fileno()).st_size - file.tell())
    if dtype.hasobject or missing > 0 or min(shape, default=0) < 0:
        raise ValueError(
            f"it holds objects, or is {missing:,} bytes shorter than its header states"
        )
    # The system maps no file of length 0.
    if 0 in shape or not dtype.itemsize:
        return np.empty(shape, dtype)
    return np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")


_IDX_FILE = re.compile(r"(?:.*[/-])?(train|t10k|test)-(images|labels)[.-]idx[13]-ubyte(?:\.gz)?")


def read_idx(archive: Archive, decoder: Decoder) -> Material:
    """Read images [1, height, width] uint8; one mean and one deviation normalise all pixels.

    Files have the names of MNIST's four files. ``test`` may replace ``t10k``; a prefix and ".gz"
    are allowed.
    """
    files = _find_idx(archive)
    images: dict[str, np.ndarray] = {}
    raw: dict[str, np.ndarray] = {}
    for split in ("train", "test"):
        x_name = files[split, "images"]
        y_name = files[split, "labels"]
        x = _read_idx_array(archive, x_name, axes=3)[:, np.newaxis]
        y = _read_idx_array(archive, y_name, axes=1)
        if len(y) != len(x) or len(y) == 0:
            raise DataError(
                f"{x_name} has {len(x)} images, but {y_name} has {len(y)} labels; the numbers must "
                "be equal, and at least 1. Download them again."
            )
        images[split] = x
        raw[split] = y
    shape = images["train"].shape[2:]
    other_shape = images["test"].shape[2:]
    if other_shape != shape:
        raise DataError(f"{archive.path}: images are {shape} in train and {other_shape} in test.")
    names = (f"{files[split, 'images']} and {files[split, 'labels']}: {split}" for split in images)
    decoder.notes.assume(f"splits from file names: {', '.join(names)}")
    _, classes, labels = read_labels(raw, CLASSIFICATION, str(archive.path))
    splits = {split: (images[split], labels[split]) for split in images}
    return build_material(archive.source, CLASSIFICATION, splits, classes, np.dtype(np.uint8), 1)


def _find_idx(archive: Archive) -> dict[tuple[str, str], str]:
    """Return the names of the four files by split and content."""
    files: dict[tuple[str, str], str] = {}
    for name in archive.names:
        match = _IDX_FILE.fullmatch(name)
        if match is None:
            continue
        split = "train" if match[1] == "train" else "test"
        other = files.setdefault((split, match[2]), name)
        if other != name:
            raise DataError(
                f"{archive.path} has both {other} and {name}; keep one data set per folder."
            )
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        prefix, what, _ = name.split("-")
        if (prefix.replace("t10k", "test"), what) not in files:
            raise DataError(f"{archive.path} has no {name}-ubyte[.gz]; idx needs all four files.")
    return files


def _read_idx_array(archive: Archive, name: str, axes: int) -> np.ndarray:
    """Return an array of bytes. Raises DataError for another number of axes, or of bytes."""
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
        # One byte more shows a header that states too few.
        content = stream.read(prod(lengths) + 1)
    if len(content) != prod(lengths):
        few = "fewer" if len(content) < prod(lengths) else "more"
        raise DataError(
            f"{name} has {few} bytes than the {prod(lengths):,} that its header states. Download "
            "it again."
        )
    return np.frombuffer(content, np.uint8).reshape(lengths)
