"""NumPy's own files, read without copying what lies on the disk as it is in memory."""

import struct
import zipfile
from typing import BinaryIO

import numpy as np

from istmpi.errors import DataError


def load_arrays(file: BinaryIO, name: str) -> dict[str, np.ndarray]:
    """The arrays of an open .npz, by name; or that of a .npy, under the name ``""``.

    ``file`` must be a real file. Arrays that are stored uncompressed are read-only memory maps, others are loaded;
    Python objects are refused. ``name`` is what a DataError calls the file.
    """
    try:
        if not zipfile.is_zipfile(file):
            return {"": _load(file, 0)}
        with zipfile.ZipFile(file) as archive:
            arrays = {}
            for entry in archive.infolist():
                if entry.compress_type == zipfile.ZIP_STORED:
                    array = _load(file, _payload(file, entry))
                else:
                    with archive.open(entry) as stream:
                        array = np.lib.format.read_array(stream, allow_pickle=False)
                arrays[entry.filename.removesuffix(".npy")] = array
            return arrays
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, struct.error) as error:
        raise DataError(f"{name} cannot be read as a NumPy file: {error}. Write it with np.savez.") from error


def _payload(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Where an entry's bytes start: behind its local header, whose lengths the central directory does not repeat."""
    file.seek(entry.header_offset)
    lengths = struct.unpack("<26xHH", file.read(30))
    return entry.header_offset + 30 + sum(lengths)


def _load(file: BinaryIO, offset: int) -> np.ndarray:
    """The .npy that starts at ``offset``, mapped."""
    file.seek(offset)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")
