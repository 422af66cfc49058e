"""NumPy's own files, read without copying what lies on the disk as it is in memory; and the arrays of a data set."""

import lzma
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from math import prod
from typing import BinaryIO

import numpy as np

from istmpi.data.dataset import NAMES, SPLITS
from istmpi.data.holdout import held_out
from istmpi.errors import DataError
from istmpi.foreign import MEGABYTE, printable, reading

COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
DENSEST = 1100
"""A deflated byte never unpacks to more: a member that says so lies."""
_ERRORS = (
    *(zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, OSError, KeyError, struct.error),
    *(zlib.error, lzma.LZMAError),
    *(TypeError, SyntaxError, tokenize.TokenError, AttributeError, IndexError),
)
"""The errors of zipfile, of unpacking, and of NumPy's reader of headers."""

Pair = tuple[np.ndarray, np.ndarray]


def load_arrays(file: BinaryIO, name: str) -> dict[str, np.ndarray]:
    """Return the arrays of an open .npz, by name; or that of a .npy, under the name ``""``.

    Arrays that are stored uncompressed are read-only memory maps, others are loaded; each member is read once, against
    its checksum. ``name`` is what a DataError calls the file.
    """
    with reading(f"{name} cannot be read as a NumPy file", "Write it with np.savez.", *_ERRORS):
        if not zipfile.is_zipfile(file):
            return {"": _map(file, 0, os.fstat(file.fileno()).st_size)}
        arrays: dict[str, np.ndarray] = {}
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                key = printable(entry.filename.removesuffix(".npy"))
                if key in arrays:
                    raise ValueError(f"it has two members {key}")
                arrays[key] = _member(file, archive, entry)
        return arrays


def array_names(what: str, split: str) -> list[str]:
    return [name for part in NAMES[split] for name in (f"{what}_{part}", f"{part}_{what}")]


def split_arrays(arrays: dict[str, np.ndarray], source: str) -> tuple[dict[str, Pair], dict[str, list[str]]]:
    """Return (x [n, ...], y [n, ...]) per split, and their arrays' names per split, or under ``""`` if split here.

    They are named x_train and y_train, or train_x and train_y, in any letter case. Arrays named x and y alone are
    split: one in five is a test example.
    """
    by_name: dict[str, str] = {}
    for name in arrays:
        if (other := by_name.setdefault(name.lower(), name)) != name:
            raise DataError(f"{source} holds both {other} and {name}. Keep one of them.")
    names: dict[str, list[str]] = {}
    for split in SPLITS:
        for x, y in zip(array_names("x", split), array_names("y", split)):
            if x in by_name and y in by_name:
                names.setdefault(split, [by_name[x], by_name[y]])
    if not names and "x" in by_name and "y" in by_name:
        names[""] = [by_name["x"], by_name["y"]]
    elif not names.keys() >= {"train", "test"}:
        held = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(f"{source} holds {held}; it needs x_train, y_train, x_test and y_test, or x and y.")
    pairs = {split: (arrays[x], arrays[y]) for split, (x, y) in names.items()}
    shape = next(iter(pairs.values()))[0].shape[1:]
    for x, y in pairs.values():
        of_one_form = x.ndim >= 2 and x.shape[1:] == shape and 0 not in shape + y.shape[1:]
        if not of_one_form or y.ndim not in (1, 2) or len(x) != len(y) or x.dtype.kind not in "fiub":
            raise DataError(
                f"{source}: x {x.shape} of {x.dtype} and y {y.shape} do not fit; needed are numbers [n, ...] and n "
                "labels, with examples of one shape in all splits."
            )
    types = {split: x.dtype for split, (x, _) in pairs.items()}
    if np.dtype(np.uint8) in types.values() and any(kind.kind == "f" for kind in types.values()):
        shown = ", ".join(f"{kind} in {split}" for split, kind in types.items())
        raise DataError(
            f"{source}: x is {shown}; bytes (0 to 255) and fractions (0 to 1) would be read alike. Save all splits "
            f"as one type, on one scale."
        )
    if "" in pairs:
        x, y = pairs[""]
        test = held_out(len(y))
        pairs = {"train": (x[~test], y[~test]), "test": (x[test], y[test])}
    for split, (_, y) in pairs.items():
        if len(y) == 0:
            raise DataError(f"{source} has no {split} examples; it needs at least one.")
    return pairs, names


def convention_of(dtypes: Iterable[np.dtype]) -> dict[str, str]:
    """Return the convention on the scale of features: bytes, from 0 to 255, or floats, mostly to 1."""
    dtypes = {*dtypes}
    if dtypes == {np.dtype(np.uint8)}:
        return {"type": "bytes"}
    return {"type": "floats"} if any(dtype.kind == "f" for dtype in dtypes) else {}


def looks_channels_last(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[2] <= 4 < shape[0]


def _member(file: BinaryIO, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    if entry.compress_type not in COMPRESSION:
        raise ValueError(f"its member {printable(entry.filename)} is compressed in a way that NumPy does not write")
    if entry.file_size > DENSEST * entry.compress_size:
        raise ValueError(f"its member {printable(entry.filename)} has fewer bytes than it says")
    with archive.open(entry) as stream:
        if entry.compress_type == zipfile.ZIP_STORED:
            file.seek(entry.header_offset)
            start = entry.header_offset + 30 + sum(struct.unpack("<26xHH", file.read(30)))
            array = _map(file, start, start + entry.file_size)
        else:
            _header(stream, entry.file_size)
            stream.seek(0)
            array = np.lib.format.read_array(stream, allow_pickle=False)
        while stream.read(MEGABYTE):
            pass  # at the end it compares the checksum
        return array


def _map(file: BinaryIO, start: int, end: int) -> np.ndarray:
    file.seek(start)
    shape, fortran, dtype = _header(file, end - start)
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")


def _header(stream: BinaryIO, size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, order and type of the .npy in a stream; ValueError where ``size`` bytes cannot hold it."""
    begin = stream.tell()
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if dtype.itemsize == 0 or any(isinstance(length, bool) or length < 0 for length in shape):
        raise ValueError(f"it has an array {shape} of {dtype}")
    missing = prod(shape) * dtype.itemsize - (size - (stream.tell() - begin))
    if missing > 0:
        raise ValueError(f"it is {missing:,} bytes shorter than its header says")
    return shape, fortran, dtype
