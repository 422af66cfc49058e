"""HDF5 files with checksums: the common part of checkpoints and prepared data sets.

    /                 attribute ``checksum``: the CRC-32 of what `seal` lists
    /checksums/PATH   [blocks] uint32: a CRC-32 for each block of rows of the dataset /PATH; of n
                      rows block b has rows ``n*b//blocks`` to ``n*(b+1)//blocks``

Every dataset is contiguous, lies in the file itself and is reached by hard links. So a reader may
map rows into memory, and reads nothing from other files. HDF5's own structures have checksums, too
(object headers of version 2).
"""

import json
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np

from istmpi.errors import ConfigError, DataError, IstmpiError
from istmpi.foreign import one_line, reason

LOCKING = False
"""HDF5's locks are off: a file appears complete and never changes. Cluster file systems often
cannot lock."""

CREATION = {"libver": ("v108", "v110"), "alignment_threshold": 2**16, "alignment_interval": 2**12}
"""Options of new files: headers with checksums, readable since HDF5 1.8; large datasets begin at
multiples of 4 KiB."""

READABLE = (1, 2)
"""Format versions that can be read. Version 1 has no checksum of attributes and of the list of
datasets."""
CHECKSUM = "checksum"
CHECKSUMS = "checksums/"

CHANGED = "its attributes or its list of datasets have changed since saving"

_CHUNK = 2**24
LONGEST_REASON = 300
"""The most characters of an error's text in a message."""

File = h5py.File
Read = Callable[[int], None]
"""A function that is called with the number of bytes just read."""
Kind = TypeVar("Kind")


@contextmanager
def opened(path: Path, kind: Callable[[Path, h5py.File], Kind], cure: str = "") -> Iterator[Kind]:
    """Open a file; yield ``kind(path, file)``.

    Raises a one-line DataError, with ``cure``, if the file is damaged or missing.
    """
    with name_damage(path, cure):
        file = h5py.File(path, "r", locking=LOCKING)
    with file:
        with name_damage(path, cure):
            structure = kind(path, file)
        yield structure


@contextmanager
def name_damage(path: Path, cure: str = "") -> Iterator[None]:
    """A context that reads a file.

    ConfigError, and other packages' errors except MemoryError, become DataError.
    """
    try:
        yield
    except ConfigError as error:
        raise DataError(f"{path} is damaged ({one_line(error)}){cure}") from None
    except (IstmpiError, MemoryError):
        raise
    except Exception as error:
        # The error may name a whole array that is in the place of a word.
        damage = f"damaged ({reason(error)[:LONGEST_REASON]})"
        if "truncated" in str(error):  # HDF5's word for a file that is too short
            damage = "truncated"
        raise DataError(f"{path} is {damage}{cure}.") from error


def read_version(file: h5py.File, path: Path, format: str, what: str, cure: str) -> int:
    """Return a file's format version.

    Raises DataError if format, version or attribute ``checksum`` is wrong.
    """
    if plain(file.attrs.get("format", "")) != format:
        raise DataError(f"{path} is an HDF5 file, but not {what}.")
    version = file.attrs.get("version", 0)
    if version not in READABLE:
        readable = " and ".join(map(str, READABLE))
        raise DataError(
            f"{path} has format version {shown(version)}; this istmpi reads versions {readable}. "
            f"{cure}."
        )
    # Without this check, a changed version number would switch the check of attributes off.
    if (CHECKSUM in file.attrs) != (version > 1):
        has = "no attribute" if version == 1 else "an attribute"
        raise DataError(
            f"{path} is damaged: its format version is {version}, which has {has} {CHECKSUM}. "
            f"{cure}."
        )
    return int(version)


@contextmanager
def new_file(path: Path, room: int) -> Iterator[h5py.File]:
    """Create a file to fill.

    Raises OSError if the disk has no room for it, at once or at the end of the context. HDF5 writes
    its structures when the file is closed, and does not survive a full disk. Until then, another
    file keeps ``room`` bytes for the structures.
    """
    # decision 41: the disk needs this room twice, until HDF5 has written its structures.
    keeper = path.with_suffix(".room.tmp")
    try:
        with keeper.open("xb") as reserved:
            # Written, because a file with a hole reserves nothing.
            reserved.write(bytes(room))
            reserved.flush()
            os.fsync(reserved.fileno())
        file = h5py.File(path, "x", locking=LOCKING, **CREATION)
        try:
            yield file
        finally:
            keeper.unlink()
            try:
                file.close()
            except RuntimeError as error:  # h5py's error for a disk without room
                raise OSError(str(error)) from error
    finally:
        keeper.unlink(missing_ok=True)


def names_array(names: Sequence[str]) -> np.ndarray:
    encoded = [name.encode() for name in names]
    return np.array(encoded, h5py.string_dtype("utf-8", max(map(len, encoded)) or 1))


def set_attribute(
    place: h5py.HLObject, name: str, value: str | int | float | tuple[int, ...]
) -> None:
    """Set an attribute.

    Texts get a fixed length, because HDF5's checksums do not cover other texts.
    """
    if isinstance(value, str):
        text = value.encode()
        dtype = h5py.string_dtype("utf-8", max(len(text), 1))
        place.attrs.create(name, np.array(text), dtype=dtype)
    else:
        place.attrs[name] = value


def seal(file: h5py.File, checksums: Mapping[str, np.ndarray]) -> None:
    """Write the CRC-32 of all attributes, the list of datasets and /checksums. Call it last."""
    file.attrs[CHECKSUM] = np.uint32(_crc_of_description(file, all_datasets(file), checksums))


def is_sealed(file: h5py.File, stored: Mapping[str, h5py.Dataset]) -> bool:
    """Return True if the CRC-32 that `seal` wrote fits the file; ``stored``: its `all_datasets`."""
    guards = {path: dataset for path, dataset in stored.items() if path.startswith(CHECKSUMS)}
    if any(find_misplaced(dataset, file.id.get_filesize()) for dataset in guards.values()):
        return False  # and perhaps of a size that nobody can read
    checksums = {path: dataset[...] for path, dataset in guards.items()}
    return file.attrs.get(CHECKSUM) == _crc_of_description(file, stored, checksums)


def _crc_of_description(
    file: h5py.File, stored: Mapping[str, h5py.Dataset], checksums: Mapping[str, np.ndarray]
) -> int:
    """Return the CRC-32 of attributes, shapes, types and checksums as JSON.

    JSON does not depend on HDF5's encoding of them.
    """
    attributes = {name: plain(value) for name, value in file.attrs.items() if name != CHECKSUM}
    description = {
        "attributes": attributes,
        "datasets": {path: _describe(dataset) for path, dataset in stored.items()},
        "checksums": {
            path: zlib.crc32(np.ascontiguousarray(values, "<u4").data)
            for path, values in checksums.items()
        },
    }
    # decision 42: a dataset that is deleted together with its checksums must be noticed.
    return zlib.crc32(json.dumps(description, sort_keys=True).encode())


def _describe(dataset: h5py.Dataset) -> list[Any]:
    attributes = {}
    # Most datasets have none, and h5py takes longer to say so than for all else here.
    if h5py.h5a.get_num_attrs(dataset.id):
        attributes = {name: plain(value) for name, value in dataset.attrs.items()}
    return [list(dataset.shape), dtype_name(dataset), attributes]


def plain(value: Any) -> Any:
    """Return a value of HDF5 as a plain number, text or list."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value


def shown(value: Any) -> str:
    return " ".join(repr(plain(value)).split())[:50]


@cache
def hdf5_type(dtype: str) -> h5py.h5t.TypeID:
    """Return a dtype's type in the file, little-endian.

    bfloat16 is a float type, which HDF5 converts for readers.
    """
    if dtype.startswith("S"):
        return h5py.h5t.py_create(h5py.string_dtype("utf-8", int(dtype[1:])))
    if dtype != "bfloat16":
        return h5py.h5t.py_create(np.dtype(dtype).newbyteorder("<"))
    kind = h5py.h5t.IEEE_F32LE.copy()
    # Bit 15 is the sign, 8 bits from 7 on are the exponent, 7 bits from 0 on the mantissa.
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def dtype_name(dataset: h5py.Dataset) -> str:
    kind = dataset.id.get_type()
    if kind.equal(hdf5_type("bfloat16")):  # h5py calls it float32
        return "bfloat16"
    return dataset.dtype.name


def datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """Return `all_datasets` without the checksums."""
    return without_checksums(all_datasets(file))


def without_checksums(stored: Mapping[str, h5py.Dataset]) -> dict[str, h5py.Dataset]:
    return {path: dataset for path, dataset in stored.items() if not path.startswith(CHECKSUMS)}


def all_datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """Return all datasets by path, in the order of names, without those behind links."""
    by_path = {}
    readonly = file.mode == "r"

    def visit(name: bytes) -> None:
        identifier = h5py.h5o.open(file.id, name)
        if isinstance(identifier, h5py.h5d.DatasetID):
            by_path[name.decode()] = h5py.Dataset(identifier, readonly=readonly)

    # It visits no soft and no external links. `h5py.Group.visititems` takes twice as long.
    h5py.h5o.visit(file.id, visit)
    return by_path


def dataset_at(file: h5py.File, path: str) -> h5py.Dataset | None:
    """Return the dataset at a path; None if nothing is there.

    Raises ValueError for a soft or external link.
    """
    place: h5py.HLObject = file
    for name in path.split("/"):
        # h5py's own look-ups would follow a link before they tell that it is one.
        if not isinstance(place, h5py.Group):
            return None
        links = place.id.links
        if not links.exists(name.encode()):
            return None
        if links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
            raise ValueError(f"{path} is a link to {_target(links.get_val(name.encode()))}")
        place = place[name]
    if not isinstance(place, h5py.Dataset):
        return None
    return place


def _target(value: Any) -> str:
    """Return a link's target as text: a path, or a pair (file, path)."""
    parts = value if isinstance(value, tuple) else (value,)
    return " in ".join(part.decode(errors="replace") for part in reversed(parts))


def find_misplaced(dataset: h5py.Dataset, size: int) -> str | None:
    """Return why a dataset's rows are not one block in a file of ``size`` bytes.

    Return None if they are.
    """
    layout = dataset.id.get_create_plist()
    if layout.get_external_count():
        return f"lies in another file ({layout.get_external(0)[0].decode(errors='replace')})"
    if layout.get_layout() == h5py.h5d.VIRTUAL:
        return "is a virtual dataset"
    nbytes = dataset.size * dataset.id.get_type().get_size()
    if not nbytes:  # HDF5 gives it no place
        return None
    offset = dataset.id.get_offset()
    contiguous = layout.get_layout() == h5py.h5d.CONTIGUOUS
    if not contiguous or offset is None or offset + nbytes > size:
        return "is not stored contiguously"
    return None


def structure_errors(file: h5py.File, stored: Mapping[str, h5py.Dataset]) -> Iterator[str]:
    """Yield datasets and checksums of `all_datasets` that lack each other, or are not one block."""
    contents = without_checksums(stored)
    size = file.id.get_filesize()
    guards = [path for path in stored if path.startswith(CHECKSUMS)]
    guarded = dict.fromkeys(path.removeprefix(CHECKSUMS) for path in guards)
    yield from (f"{path} is missing" for path in guarded if path not in contents)
    yield from (f"{path} has no checksums" for path in contents if path not in guarded)
    for path, dataset in stored.items():
        problem = find_misplaced(dataset, size)
        if problem:
            yield f"{path} {problem}"


def checksum_errors(
    file: h5py.File,
    stored: Mapping[str, h5py.Dataset],
    part: int = 0,
    parts: int = 1,
    read: Read = lambda nbytes: None,
    paths: Collection[str] | None = None,
    chosen: Callable[[int, int], bool] = lambda block, blocks: True,
) -> Iterator[str]:
    """Check every ``parts``-th block of rows, from number ``part`` on.

    Yield a line for each wrong checksum. ``stored``: the file's `all_datasets`. ``paths``: those to
    check, or None for all. ``chosen(block, blocks)``: whether to check a block of so many.
    """
    number = 0
    for path, dataset in without_checksums(stored).items():
        if paths is not None and path not in paths:
            continue
        expected = read_checksums(file, path, stored.get(CHECKSUMS + path))
        if expected is None:
            continue
        rows = dataset.shape[0]
        for block, crc in enumerate(expected):
            if number % parts == part and chosen(block, len(expected)):
                first = rows * block // len(expected)
                last = rows * (block + 1) // len(expected)
                if _crc(dataset, first, last, read) != crc:
                    yield differs(path, first, last)
            number += 1


def differs(path: str, first: int, last: int) -> str:
    return f"{path}, rows {first} to {last - 1}: the checksum differs"


def read_checksums(file: h5py.File, path: str, guard: Any = None) -> np.ndarray | None:
    """Read the checksums of a dataset's blocks; None if it has none.

    Raises ValueError if they are malformed. ``guard``: their dataset, if it has been opened.
    """
    guard = guard or dataset_at(file, CHECKSUMS + path)
    if guard is None:
        return None
    well_formed = guard.dtype == np.uint32 and guard.ndim == 1 and guard.size > 0
    if not well_formed or find_misplaced(guard, file.id.get_filesize()):
        raise ValueError(f"{CHECKSUMS}{path} lacks checksums")
    return guard[...]


def _crc(dataset: h5py.Dataset, first: int, last: int, read: Read) -> int:
    row = dataset.id.get_type().get_size() * prod(dataset.shape[1:])
    # Some rows at a time, with the same memory for all: a dataset may exceed the memory.
    step = min(max(_CHUNK // max(row, 1), 1), last - first)
    memory = np.empty(step * row, dtype=np.uint8)
    crc = 0
    for start in range(first, last, max(step, 1)):
        stop = min(start + step, last)
        rows = read_rows(dataset, start, stop, memory[: (stop - start) * row])
        crc = zlib.crc32(rows.data, crc)
        read(len(rows))
    return crc


def read_rows(dataset: h5py.Dataset, first: int, last: int, out: np.ndarray) -> np.ndarray:
    """Read rows of a dataset, as bytes of the file, into ``out`` (flat uint8), and return it."""
    if len(out):
        # The library's own call: h5py's would convert bfloat16, and copy.
        start = (first,) + (0,) * (dataset.ndim - 1)
        count = (last - first, *dataset.shape[1:])
        space = dataset.id.get_space()
        space.select_hyperslab(start, count)
        dataset.id.read(h5py.h5s.create_simple(count), space, out, dataset.id.get_type())
    return out
