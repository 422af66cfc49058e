"""What a checkpoint holds and where: the one place that knows the file's groups, attributes and types.

    /                           attributes: see `Header`
    /model/PARAMETER            the whole parameter in its global shape; attribute: axes
    /optim/PARAMETER/SLOT       optimizer state that is carried along, likewise
    /norm/STAGE/{mean,std}      calibrated moments of each unit, where the weights were calibrated
    /input/{mean,std}           what examples are normalised with; /input/classes: their names
    /partial/                   what each rank has beside the above, of a stopped round or of a network of its own:
    /partial/{local_steps,losses}, and like /model and /optim the tensors of which every rank has its own values
    /checksums/PATH             a CRC-32 for each block of rows of the dataset PATH

Every dataset is contiguous and has its place in the file from the start. Structure and attributes are guarded by HDF5's
own checksums (object headers of version 2), contents by ours. docs/checkpoint-format.md is the description for readers.
"""

import dataclasses
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import h5py
import numpy as np

from istmpi.axes import ITEMSIZE
from istmpi.config import Run
from istmpi.errors import ConfigError, DataError

FORMAT, VERSION = "istmpi-checkpoint", 1

LOCKING = False
"""A file appears under its name complete and never changes: nothing to lock, and cluster file systems often cannot."""

CREATION = {"libver": ("v108", "v110"), "alignment_threshold": 2**16, "alignment_interval": 2**12}
"""Object headers with checksums, readable since HDF5 1.8; large datasets begin at a block of the file system."""

_CHUNK = 2**26
"""Bytes that are read at a time when checksums are compared."""


@dataclass(frozen=True)
class DataSummary:
    """What a network was trained on, as far as it must be known to go on or to predict."""

    source: str
    kind: str
    """As in `istmpi prepare KIND`, or ``digits``."""
    task: str
    shape: tuple[int, ...]
    """Of one example."""
    outputs: int
    train: int
    """Training examples; 0 where each rank has its own."""
    labels: int
    """CRC-32 of the training labels; 0 where each rank has its own."""


@dataclass(frozen=True)
class Header:
    """The root attributes: scalars as numbers, everything else as JSON."""

    run: Run
    ranks: int
    """Ranks that saved."""
    round: int
    """Rounds done."""
    local_step: int
    """Local steps done in the round that follows them: the most that any rank has done."""
    examples: int
    """Examples consumed by all ranks so far, from the data's first batch on: the position in the data."""
    seconds: float
    """Spent on training so far."""
    bytes: int
    """Handed to MPI by all ranks so far."""
    loss: float
    """Mean training loss of the last round."""
    data: DataSummary
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the libraries."""

    @property
    def position(self) -> tuple[int, int]:
        """Orders checkpoints of one run."""
        return self.round, self.local_step


@dataclass(frozen=True)
class Piece:
    """A dataset of the file, and the part of it that this rank writes."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    values: np.ndarray
    """This rank's rows, perhaps none: contiguous, of any type with as many bytes."""
    first_row: int = 0
    axes: str | None = None
    blocks: int = 1
    """Blocks of rows that the checksums are made of: block b has rows ``n*b//blocks`` to ``n*(b+1)//blocks``."""
    block: int | None = 0
    """Which of them this rank's rows are; None for a rank that writes nothing here."""

    @property
    def row_bytes(self) -> int:
        return (ITEMSIZE.get(self.dtype) or np.dtype(self.dtype).itemsize) * prod(self.shape[1:])

    @property
    def bytes(self) -> np.ndarray:
        """The values as they go into the file, flat uint8."""
        return self.values.reshape(-1).view(np.uint8)


def place(name: str) -> str:
    """Where a stored tensor lies: PARAMETER in /model, PARAMETER/SLOT in /optim."""
    return f"optim/{name}" if "/" in name else f"model/{name}"


def with_checksums(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces, and for each the piece of /checksums that guards it."""
    extended = []
    for piece in pieces:
        crc = [] if piece.block is None else [zlib.crc32(piece.bytes)]
        guard = Piece(f"checksums/{piece.path}", (piece.blocks,), "uint32", np.array(crc, "<u4"), piece.block or 0)
        extended += piece, guard
    return extended


def create(file: h5py.File, header: Header, pieces: Iterable[Piece]) -> dict[str, int]:
    """Make the attributes and every dataset, without values; returns where in the file each dataset begins."""
    attributes = {"format": FORMAT, "version": VERSION, "seed": header.run.train.seed}
    for item in dataclasses.fields(header):
        value = getattr(header, item.name)
        plain = value.tree() if isinstance(value, Run) else value
        plain = dataclasses.asdict(value) if isinstance(value, DataSummary) else plain
        attributes[item.name] = plain if isinstance(plain, int | float) else json.dumps(plain)
    for name, value in attributes.items():
        _attribute(file, name, value)
    offsets = {}
    for piece in pieces:
        dataset = _allocate(file, piece)
        if piece.axes is not None:
            _attribute(dataset, "axes", piece.axes)
        offsets[piece.path] = dataset.id.get_offset() or 0
    return offsets


def _attribute(place: h5py.HLObject, name: str, value: str | int | float) -> None:
    """Texts of fixed length: those of variable length would lie outside of what HDF5's checksums guard."""
    if isinstance(value, str):
        text = value.encode()
        place.attrs.create(name, np.array(text), dtype=h5py.string_dtype("utf-8", max(len(text), 1)))
    else:
        place.attrs[name] = value


def _allocate(file: h5py.File, piece: Piece) -> h5py.Dataset:
    """A contiguous dataset that has its place in the file from the start and is not filled."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_layout(h5py.h5d.CONTIGUOUS)
    settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    settings.set_obj_track_times(False)
    group, _, name = piece.path.rpartition("/")
    space = h5py.h5s.create_simple(piece.shape)
    place = file.require_group(group)
    return h5py.Dataset(h5py.h5d.create(place.id, name.encode(), hdf5_type(piece.dtype), space, settings))


def hdf5_type(dtype: str) -> h5py.h5t.TypeID:
    """The type in the file, little-endian; bfloat16 as the true float that it is, which HDF5 converts for readers."""
    if dtype.startswith("S"):
        return h5py.h5t.py_create(h5py.string_dtype("utf-8", int(dtype[1:])))
    if dtype != "bfloat16":
        return h5py.h5t.py_create(np.dtype(dtype).newbyteorder("<"))
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def dtype_name(dataset: h5py.Dataset) -> str:
    """The inverse of `hdf5_type`."""
    kind = dataset.id.get_type()
    return "bfloat16" if kind.equal(hdf5_type("bfloat16")) else dataset.dtype.name


def read_header(file: h5py.File, path: Any) -> Header:
    """The root attributes of an open file; DataError for a file of another format or version."""
    attributes = dict(file.attrs)
    if _text(attributes.get("format", "")) != FORMAT:
        raise DataError(f"{path}: an HDF5 file, but not a checkpoint of istmpi.")
    if (version := int(attributes.get("version", 0))) != VERSION:
        raise DataError(
            f"{path}: a checkpoint of format version {version}; this istmpi reads version {VERSION}. "
            f"Use the version of istmpi that wrote it, or a newer one."
        )
    values = {}
    for item in dataclasses.fields(Header):
        if item.name not in attributes:
            raise DataError(f"{path}: damaged: it has no attribute {item.name}.")
        value = attributes[item.name]
        values[item.name] = item.type(value) if item.type in (int, float) else json.loads(_text(value))
    try:
        values["run"] = Run.from_tree(values["run"], str(path))
    except ConfigError as error:
        raise DataError(f"{path}: its run cannot be read ({error}).") from None
    data = values["data"]
    values["data"] = DataSummary(**{**data, "shape": tuple(data["shape"])})
    return Header(**values)


def datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """Every dataset by its path, checksums left out, in the file's order."""
    found = {}

    def visit(path: str, item: h5py.HLObject) -> None:
        if isinstance(item, h5py.Dataset) and not path.startswith("checksums/"):
            found[path] = item

    file.visititems(visit)
    return found


def checksum_errors(
    file: h5py.File, part: int = 0, parts: int = 1, read: Callable[[int], None] = lambda nbytes: None
) -> Iterator[str]:
    """What is wrong with the contents, one line each, of every ``parts``-th block from number ``part`` on.

    ``read`` is told of bytes as they are read.
    """
    number = 0
    found = datasets(file)
    for path in _guarded(file):
        if path not in found:
            yield f"{path} is missing"
    for path, dataset in found.items():
        if f"checksums/{path}" not in file:
            yield f"{path} has no checksums"
            continue
        expected = file[f"checksums/{path}"][...]
        rows = dataset.shape[0]
        for block, crc in enumerate(expected):
            if number % parts == part:
                first, last = rows * block // len(expected), rows * (block + 1) // len(expected)
                if _crc(dataset, first, last, read) != crc:
                    yield f"{path}, rows {first} to {last - 1}: the checksum differs"
            number += 1


def _guarded(file: h5py.File) -> list[str]:
    """The paths of the datasets that have checksums."""
    paths: list[str] = []
    guards = file.get("checksums")
    if isinstance(guards, h5py.Group):
        guards.visititems(lambda path, item: paths.append(path) if isinstance(item, h5py.Dataset) else None)
    return paths


def _crc(dataset: h5py.Dataset, first: int, last: int, read: Callable[[int], None]) -> int:
    row = dataset.id.get_type().get_size() * prod(dataset.shape[1:])
    step = max(_CHUNK // max(row, 1), 1)
    crc = 0
    for start in range(first, last, step):
        rows = read_rows(dataset, start, min(start + step, last))
        crc = zlib.crc32(rows, crc)
        read(len(rows))
    return crc


def read_rows(dataset: h5py.Dataset, first: int, last: int, out: np.ndarray | None = None) -> np.ndarray:
    """Rows of a dataset as the bytes that the file has, flat uint8; into ``out`` where it is given."""
    kind = dataset.id.get_type()
    row = kind.get_size() * prod(dataset.shape[1:])
    out = np.empty((last - first) * row, dtype=np.uint8) if out is None else out
    if len(out):
        count = (last - first, *dataset.shape[1:])
        space = dataset.id.get_space()
        space.select_hyperslab((first, *(0 for _ in dataset.shape[1:])), count)
        dataset.id.read(h5py.h5s.create_simple(count), space, out, kind)
    return out


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
