"""NumPy's own files, read without copying what lies on the disk as it is in memory."""

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

from istmpi.foreign import MEGABYTE, printable, reading

COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What np.savez and np.savez_compressed write."""
DENSEST = 1100
"""No byte of a deflated member unpacks to more bytes: one that says so lies."""

# As zipfile and NumPy's reader of headers raise them.
_ZIP = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, OSError, KeyError, struct.error)
_UNPACKING = (zlib.error, lzma.LZMAError)
_HEADER = (TypeError, SyntaxError, tokenize.TokenError, AttributeError, IndexError)


def load_arrays(file: BinaryIO, name: str) -> dict[str, np.ndarray]:
    """The arrays of an open .npz, by name; or that of a .npy, under the name ``""``.

    ``file`` must be a real file. Arrays that are stored uncompressed are read-only memory maps, others are loaded; each
    member of an .npz is read once, against its checksum. Python objects are refused. ``name`` is what a DataError calls
    the file.
    """
    with reading(f"{name} cannot be read as a NumPy file", "Write it with np.savez.", *_ZIP, *_UNPACKING, *_HEADER):
        size = os.fstat(file.fileno()).st_size
        if not zipfile.is_zipfile(file):
            file.seek(0)
            return {"": _map(file, 0, size)}
        arrays: dict[str, np.ndarray] = {}
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                key = printable(entry.filename.removesuffix(".npy"))
                if key in arrays:
                    raise ValueError(f"it has two members {key}")
                arrays[key] = _member(file, archive, entry)
        return arrays


def array_names(what: str, split: str) -> list[str]:
    """The names, in small letters, that the arrays ``x`` or ``y`` of a split may have."""
    splits = ("validation", "valid", "val") if split == "validation" else (split,)
    return [name for part in splits for name in (f"{what}_{part}", f"{part}_{what}")]


def convention_of(dtypes: Iterable[np.dtype]) -> dict[str, str]:
    """The convention on the scale of features that their types tell: bytes, from 0 to 255, or floats, mostly to 1."""
    dtypes = {*dtypes}
    if dtypes == {np.dtype(np.uint8)}:
        return {"type": "bytes"}
    return {"type": "floats"} if any(dtype.kind == "f" for dtype in dtypes) else {}


def looks_channels_last(shape: tuple[int, ...]) -> bool:
    """An example of three axes seems to be an image whose channels come last: four at most, and more before them."""
    return len(shape) == 3 and shape[2] <= 4 < shape[0]


def _member(file: BinaryIO, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """A member of a zip, mapped where it is stored as it is; its checksum is compared in any case."""
    if entry.compress_type not in COMPRESSION:
        raise ValueError(f"its member {printable(entry.filename)} is compressed in a way that NumPy does not write")
    if entry.file_size > DENSEST * entry.compress_size:
        raise ValueError(f"its member {printable(entry.filename)} has fewer bytes than it says")
    with archive.open(entry) as stream:
        if entry.compress_type == zipfile.ZIP_STORED:
            while stream.read(MEGABYTE):
                pass  # at the end it compares the checksum
            start = _payload(file, entry)
            return _map(file, start, start + entry.file_size)
        shape, fortran, dtype = _header(stream, entry.file_size)
        array = np.empty(shape[::-1] if fortran else shape, dtype)
        into, filled = memoryview(array).cast("B") if array.size else memoryview(b""), 0
        while filled < len(into):
            count = stream.readinto(into[filled : filled + MEGABYTE])
            if not count:
                raise EOFError("it ends in the middle of an array")
            filled += count
        while stream.read(MEGABYTE):
            pass
        return array.T if fortran else array


def _payload(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    file.seek(entry.header_offset)
    lengths = struct.unpack("<26xHH", file.read(30))
    return entry.header_offset + 30 + sum(lengths)


def _map(file: BinaryIO, start: int, end: int) -> np.ndarray:
    file.seek(start)
    shape, fortran, dtype = _header(file, end - start)
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")


def _header(stream: BinaryIO, size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of the .npy that a stream starts with; ValueError where ``size`` bytes cannot hold it."""
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
