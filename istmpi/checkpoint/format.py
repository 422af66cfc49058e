"""The format of checkpoints: the one place that knows the file's groups, attributes and types.

    /                           attributes: see `Header`; ``checksum`` guards them and the list of datasets
    /model/PARAMETER            the whole parameter in its global shape; attribute: axes
    /optim/PARAMETER/SLOT       optimizer state that is carried along, likewise
    /norm/STAGE/{mean,std}      calibrated moments of each unit, where the weights were calibrated
    /input/{mean,std,offset}    what examples are normalised with; /input/classes: their names; /input/tokenizer;
                                /input/reading: conventions by which the training data were read, JSON in bytes
    /output/{mean,std,offset}   likewise numbers to predict; /output/names
    /partial/                   what each rank has beside the above, of a stopped round or of a network of its own:
    /partial/{local_steps,losses}, and like /model and /optim the tensors of which every rank has its own values
    /data/own                   a row for each rank that has data of its own: examples, CRC-32 of labels and of features
    /checksums/PATH             a CRC-32 for each block of rows of the dataset PATH

Every dataset is contiguous and has its place in the file from the start; istmpi/hdf5.py says what guards a file.
docs/checkpoint-format.md is the description for readers.
"""

import dataclasses
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import h5py
import numpy as np

from istmpi.config import Run
from istmpi.engine.axes import ITEMSIZE
from istmpi.engine.slots import Slot
from istmpi.errors import ConfigError, DataError
from istmpi.hdf5 import CHECKSUM, CHECKSUMS, CREATION, hdf5_type, seal, set_attribute, shown
from istmpi.tasks import TASKS

FORMAT, VERSION = "istmpi-checkpoint", 2
READABLE = (1, 2)
"""Versions that can be read; in the first nothing guards the attributes and the list of datasets."""

_RANGES = {
    "ranks": (1, 2**31 - 1),
    "round": (0, 2**31 - 1),
    "local_step": (0, 2**31 - 1),
    "examples": (0, 2**63 - 1),
    "bytes": (0, 2**63 - 1),
    "seconds": (0.0, 1e12),
    "side": (0, 2**31 - 1),
    "temperature": (1e-6, 1e6),
}
"""Bounds of a header's numbers; files of version 1 have no checksum that would catch others."""


@dataclass(frozen=True)
class DataSummary:
    """The training data of a network, as far as they must be known to resume or to predict."""

    source: str
    kind: str
    """The KIND of `istmpi prepare`, or ``digits``."""
    task: str
    shape: tuple[int, ...]
    outputs: int
    train: int
    """Training examples; 0 where each rank has its own."""
    labels: int
    """CRC-32 of the training labels; 0 where each rank has its own."""
    features: int | None = None
    """CRC-32 of a sample of the training features; 0 where each rank has its own, None in files of version 1."""

    @property
    def fingerprint(self) -> str:
        """A fingerprint that tells training data of the same name apart; empty where each rank has its own."""
        return f"{self.features:08x}{self.labels:08x}" if self.features or self.labels else ""


@dataclass(frozen=True)
class Header:
    """The root attributes: scalars as numbers, everything else as JSON."""

    run: Run
    ranks: int
    round: int
    local_step: int
    """Local steps done in the round that follows them: the most that any rank has done."""
    examples: int
    """Examples consumed by all ranks so far, from the data's first batch on: the position in the data."""
    seconds: float
    bytes: int
    """Bytes that all ranks have handed to MPI so far."""
    loss: float
    data: DataSummary
    scale: Mapping[str, float] = field(default_factory=dict)
    """Factors of each unit group's contributions in products of the full network that sum over it."""
    versions: Mapping[str, str] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    """The network's `istmpi.models.table.Table` as JSON has it; empty for an mlp in files of an earlier version."""

    side: int = 0
    """The side of the images that it was last trained on, if they were downscaled; otherwise 0."""

    fitted: Mapping[str, float] = field(default_factory=dict)
    """Factors that take the place of ``scale`` where they were fitted or left out."""

    temperature: float = 1.0
    """The number that divides a classifier's logits before the softmax; 1 where nobody fitted it."""

    shares: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """Shares that change during the run: those of the last trained round and the two behind it, by the number of
    the first round that has them."""

    @property
    def full_scale(self) -> dict[str, float]:
        """Factors by which the full network multiplies the contributions of each unit group."""
        return {**self.scale, **self.fitted}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example in the last training rounds."""
        return (self.data.shape[0], self.side, self.side) if self.side else self.data.shape

    @property
    def position(self) -> tuple[int, int]:
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
    """The number of this rank's block; None for a rank that writes nothing here."""

    @property
    def row_bytes(self) -> int:
        return (ITEMSIZE.get(self.dtype) or np.dtype(self.dtype).itemsize) * prod(self.shape[1:])

    @property
    def bytes(self) -> np.ndarray:
        """The values as bytes of the file, flat uint8."""
        return self.values.reshape(-1).view(np.uint8)


def place(name: str) -> str:
    """Return the place of a stored tensor: PARAMETER in /model, PARAMETER/SLOT in /optim."""
    return f"optim/{name}" if isinstance(name, Slot) else f"model/{name}"


def with_checksums(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces, and for each the piece of /checksums that guards it."""
    extended = []
    for piece in pieces:
        crc = [] if piece.block is None else [zlib.crc32(piece.bytes)]
        guard = Piece(CHECKSUMS + piece.path, (piece.blocks,), "uint32", np.array(crc, "<u4"), piece.block or 0)
        extended += piece, guard
    return extended


def parts_of_checksums(pieces: Iterable[Piece]) -> list[np.ndarray]:
    """This rank's values of every piece of /checksums, in order."""
    return [piece.values for piece in pieces if piece.path.startswith(CHECKSUMS)]


def create(
    file: h5py.File, header: Header, pieces: Sequence[Piece], checksums: Sequence[Sequence[np.ndarray]]
) -> dict[str, int]:
    """Make the attributes and every dataset without values; return the place in the file at which each begins.

    ``checksums`` are all ranks' `parts_of_checksums`, for the attributes and the list of datasets to be sealed with.
    """
    for name, value in _attributes(header).items():
        set_attribute(file, name, value)
    offsets = {}
    for piece in pieces:
        dataset = _allocate(file, piece)
        if piece.axes is not None:
            set_attribute(dataset, "axes", piece.axes)
        offsets[piece.path] = dataset.id.get_offset() or 0
    guards = [piece.path for piece in pieces if piece.path.startswith(CHECKSUMS)]
    seal(file, {path: np.concatenate(parts) for path, *parts in zip(guards, *checksums, strict=True)})
    return offsets


def _attributes(header: Header) -> dict[str, str | int | float]:
    attributes: dict[str, str | int | float] = {"format": FORMAT, "version": VERSION, "seed": header.run.train.seed}
    for item in dataclasses.fields(header):
        value = getattr(header, item.name)
        if (item.name in ("network", "side", "shares") and not value) or (item.name == "temperature" and value == 1):
            continue
        plain = value.tree() if isinstance(value, Run) else value
        plain = dataclasses.asdict(value) if isinstance(value, DataSummary) else plain
        attributes[item.name] = plain if isinstance(plain, int | float) else json.dumps(plain)
    return attributes


def room_for_structure(header: Header, pieces: Sequence[Piece]) -> int:
    """Return room for the bytes of a file that are no rows: 400 a dataset, its axes and its path, and some more."""
    texts = sum(len(str(value)) for value in _attributes(header).values())
    return 2**16 + 2 * texts + sum(2**10 + len(piece.path) + len(piece.axes or "") for piece in pieces)


def require_storable(header: Header, pieces: Iterable[Piece]) -> None:
    """Make a header and some pieces in memory; ConfigError for anything that HDF5 or TOML cannot hold."""
    try:
        with h5py.File("rehearsal", "w", driver="core", backing_store=False, **CREATION) as file:
            pieces = with_checksums(pieces)
            create(file, header, pieces, [parts_of_checksums(pieces)])
        header.run.toml().encode()
    except (OSError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"run {header.run.name!a}: what is to be saved of it cannot be stored ({error}). Use texts of Unicode "
            f"and numbers of 64 bits in its settings, its path, and its classes' names."
        ) from None


def _allocate(file: h5py.File, piece: Piece) -> h5py.Dataset:
    """Make a contiguous dataset that has its place in the file from the start and is not filled."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_layout(h5py.h5d.CONTIGUOUS)
    settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    settings.set_obj_track_times(False)
    group, _, name = piece.path.rpartition("/")
    space = h5py.h5s.create_simple(piece.shape)
    place = file.require_group(group)
    return h5py.Dataset(h5py.h5d.create(place.id, name.encode(), hdf5_type(piece.dtype), space, settings))


def read_version(file: h5py.File, path: Any) -> int:
    """Read the version of an open file's format; DataError for another format or version."""
    if _text(file.attrs.get("format", "")) != FORMAT:
        raise DataError(f"{path}: an HDF5 file, but not a checkpoint of istmpi.")
    version = file.attrs.get("version", 0)
    if version not in READABLE:
        raise DataError(
            f"{path}: a checkpoint of format version {shown(version)}; this istmpi reads versions "
            f"{' and '.join(map(str, READABLE))}. Use the version of istmpi that wrote it, or a newer one."
        )
    if (CHECKSUM in file.attrs) != (version > 1):
        attribute = "no attribute" if version == 1 else "an attribute"
        raise DataError(f"{path}: damaged: its format version is {shown(version)}, which has {attribute} {CHECKSUM}.")
    return int(version)


def read_header(file: h5py.File, path: Any) -> Header:
    """Read the root attributes of an open file; DataError for values that cannot be theirs."""
    attributes = dict(file.attrs)
    if attributes["version"] == 1:
        attributes.setdefault("scale", "{}")
    attributes.setdefault("network", "{}")
    attributes.setdefault("side", np.int64(0))
    attributes.setdefault("fitted", "{}")
    attributes.setdefault("temperature", np.float64(1))
    attributes.setdefault("shares", "{}")
    values = {}
    for item in dataclasses.fields(Header):
        if item.name not in attributes:
            raise DataError(f"{path}: damaged: it has no attribute {item.name}.")
        value = attributes[item.name]
        values[item.name] = _number(value, item, path) if item.type in (int, float) else _tree(value, item.name, path)
    try:
        values["run"] = Run.from_tree(values["run"], str(path))
    except ConfigError as error:
        raise DataError(f"{path}: its run cannot be read ({error}).") from None
    values["data"] = _data_summary(values["data"], path)
    for name in ("scale", "fitted"):
        if not all(isinstance(factor, float) and 0 < factor < np.inf for factor in values[name].values()):
            raise DataError(f"{path}: damaged: its attribute {name} has other values than positive numbers.")
    ranks = values["ranks"]
    if not all(number.isdecimal() and _are_shares(shares, ranks) for number, shares in values["shares"].items()):
        raise DataError(f"{path}: damaged: its attribute shares has other values than a positive number for each rank.")
    values["shares"] = {int(number): tuple(shares) for number, shares in values["shares"].items()}
    if not all(isinstance(version, str) for version in values["versions"].values()):
        raise DataError(f"{path}: damaged: its attribute versions has other values than texts.")
    if (seed := attributes.get("seed")) != values["run"].train.seed:
        raise DataError(f"{path}: damaged: its seed is {shown(seed)}, its run's {values['run'].train.seed}.")
    return Header(**values)


def _number(value: Any, item: dataclasses.Field, path: Any) -> int | float:
    low, high = _RANGES.get(item.name, (-np.inf, np.inf))
    kinds = (np.integer,) if item.type is int else (np.integer, np.floating)
    if not isinstance(value, kinds) or (item.name in _RANGES and not low <= value <= high):
        kind = "whole number" if item.type is int else "number"
        raise DataError(
            f"{path}: damaged: its attribute {item.name} is {shown(value)}, no {kind} from {low} to {high}."
        )
    return item.type(value)


def _tree(value: Any, name: str, path: Any) -> dict[str, Any]:
    try:
        tree = json.loads(_text(value))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: damaged: its attribute {name} is not readable JSON ({error}).") from None
    if not isinstance(tree, dict):
        raise DataError(f"{path}: damaged: its attribute {name} is no JSON object.")
    return tree


def _data_summary(tree: Mapping[str, Any], path: Any) -> DataSummary:
    """Read the attribute ``data``; files of version 1 have no fingerprint of the features."""
    tree = {"features": None, **tree}
    counts = ["outputs", "train", "labels"] + ["features"] * (tree["features"] is not None)
    fits = {name: isinstance(tree.get(name), str) for name in ("source", "kind")}
    fits |= {name: type(tree.get(name)) is int and 0 <= tree[name] < 2**63 for name in counts}
    fits["task"] = tree.get("task") in TASKS
    shape = tree.get("shape")
    fits["shape"] = isinstance(shape, list) and all(type(length) is int and length > 0 for length in shape)
    if wrong := [name for name in fits if not fits[name]]:
        raise DataError(f"{path}: damaged: its attribute data has {wrong[0]} = {shown(tree.get(wrong[0]))}.")
    return DataSummary(**{**tree, "shape": tuple(shape)})


def _are_shares(value: Any, ranks: int) -> bool:
    numbers = isinstance(value, list) and all(isinstance(share, float) and 0 < share < np.inf for share in value)
    return numbers and len(value) == ranks


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
