"""The format of checkpoints (docs/formats.md): their attributes, and how a file and its datasets
are created.

Every dataset is contiguous; its place is fixed before values are written. istmpi/hdf5.py has the
checksums.
"""

import dataclasses
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any

import h5py
import numpy as np

from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.engine.axes import ITEMSIZE
from istmpi.engine.slots import Slot
from istmpi.errors import ConfigError, DataError
from istmpi.hdf5 import CHECKSUMS, CREATION, hdf5_type, plain, seal, set_attribute, shown
from istmpi.optim.course import Course
from istmpi.settings import Count, Meta, Natural, Positive, convert_value, find_types

FORMAT = "istmpi-checkpoint"
VERSION = 2
_LEFT_OUT = {
    "network": {},
    "side": 0,
    "shares": {},
    "temperature": 1.0,
    "frozen": 0.0,
    "state_since": 0,
    "most_examples": {},
}
"""Defaults of attributes; a file has such an attribute only if the value differs."""
_MOST = 2**31 - 1
_Upto = Annotated[int, Meta(ge=0, le=_MOST)]


@dataclass(frozen=True)
class DataSummary:
    """The facts about a network's training data that resuming or predicting needs."""

    source: str
    kind: str
    """The KIND of `istmpi prepare`, ``digits``, ``python`` (a user's function), or ``program`` (a
    user's program)."""
    task: str
    shape: tuple[Count, ...]
    outputs: Natural
    train: Natural
    """The number of training examples; 0 if each rank has its own data."""
    labels: Natural
    """CRC-32 of the training labels, or a sample; 0 for text, or if each rank has its own data."""
    features: Natural | None = None
    """CRC-32 of a sample of the training features; 0 if each rank has its own data, None in files
    of version 1."""
    columns: tuple[Count, ...] = ()
    """The number of columns of each rank, if ranks have different columns; else empty."""

    @property
    def fingerprint(self) -> str:
        if not (self.features or self.labels):
            return ""
        return f"{self.features:08x}{self.labels:08x}"


@dataclass(frozen=True)
class Header:
    """The root attributes that describe a run and its network. Numbers stay numbers; all else is
    JSON."""

    run: Run
    ranks: Annotated[int, Meta(ge=1, le=_MOST)]
    round: _Upto
    local_step: _Upto
    """Local steps done in the round after ``round``: the most of any rank. Always 0 in new
    files."""
    examples: Natural
    """Examples that all ranks have consumed since the data's first batch: the position in the
    data."""
    seconds: Annotated[float, Meta(ge=0, le=1e12)]
    bytes: Natural
    """Bytes that all ranks have sent in rounds so far, without evaluations."""
    loss: float
    data: DataSummary
    scale: Mapping[str, Positive] = field(default_factory=dict)
    """The factor by which the full network multiplies products that sum over a group's units, for
    each group."""
    versions: Mapping[str, str] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    """The network's `istmpi.network.table.Table` as a tree for JSON; empty for an mlp in files of
    earlier versions."""

    side: _Upto = 0
    """The side of the downscaled images in the last round; 0 if images were not downscaled."""

    fitted: Mapping[str, Positive] = field(default_factory=dict)
    """Fitted factors, which replace those of ``scale``."""

    temperature: Annotated[float, Meta(ge=1e-6, le=1e6)] = 1.0
    """The number that divides a classifier's logits before the softmax; 1 if it was not fitted."""

    shares: Mapping[int, tuple[Positive, ...]] = field(default_factory=dict)
    """The ranks' shares (`istmpi.engine.shares`) by their first round: for the last trained round
    and the next two; empty while shares are equal or fixed."""

    blocks: _Upto = 0
    """The number of subnets that form the network side by side (evaluate.form); 0 for the full
    network."""

    frozen: float = 0.0
    """A digest of the network's frozen parameters, by which a resumed run compares them; 0 if there
    are none."""

    state_since: _Upto = 0
    """The number of rounds done when ranks lost their own optimizer states, which began anew; 0 if
    they never did."""

    most_examples: Mapping[_Upto, Count] = field(default_factory=dict)
    """The training examples of the rank that has most, by the number of rounds done when it became
    so; empty if it has not changed since the start."""

    def tree(self) -> dict[str, Any]:
        """Return the header as a tree for JSON."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return values | {"run": self.run.tree(), "data": dataclasses.asdict(self.data)}

    @property
    def course(self) -> Course:
        if self.most_examples:
            return self.run.course(self.most_examples)
        return Course.from_rounds(self.run.train.rounds)

    @property
    def phases(self) -> Sequence[tuple[str, int]]:
        """The methods of the run in turn, each with its number of rounds."""
        return self.run.phases(self.course)

    @property
    def is_sum(self) -> bool:
        """True if the network is the sum of its subnets."""
        # The method of a whole network may be one that this version does not know.
        return bool(self.blocks) and find_method_spec(self.run.method.name).sums_outputs

    @property
    def full_scale(self) -> dict[str, float]:
        if self.is_sum:
            # Files of earlier versions have factors that the sum does not use.
            return {}
        return {**self.scale, **self.fitted}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example in the last round."""
        if not self.side:
            return self.data.shape
        return (self.data.shape[0], self.side, self.side)

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
    """This rank's rows, contiguous; there may be none. Any type with the right number of bytes will
    do."""
    first_row: int = 0
    axes: str | None = None
    blocks: int = 1
    """The number of blocks that have a checksum each: block b has rows ``n*b//blocks`` to
    ``n*(b+1)//blocks``."""
    block: int | None = 0
    """The number of this rank's block; None for a rank that writes nothing here."""
    of_root: bool = False
    """True for a piece that rank 0 alone lists and writes; other ranks do not know it."""

    @property
    def row_bytes(self) -> int:
        # NumPy does not know bfloat16.
        itemsize = ITEMSIZE.get(self.dtype) or np.dtype(self.dtype).itemsize
        return itemsize * prod(self.shape[1:])

    @property
    def first_byte(self) -> int:
        """The place of this rank's rows in the dataset, in bytes."""
        return self.first_row * self.row_bytes

    @property
    def bytes(self) -> np.ndarray:
        return self.values.reshape(-1).view(np.uint8)


def place(name: str) -> str:
    """Return the path of a parameter's or a slot's dataset."""
    folder = "optim" if isinstance(name, Slot) else "model"
    return f"{folder}/{name}"


def add_checksums(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces, each followed by the piece of its checksum."""
    extended = []
    for piece in pieces:
        crcs = []
        # A rank that writes nothing here has no block, and no checksum.
        if piece.block is not None:
            crcs.append(zlib.crc32(piece.bytes.data))
        guard = Piece(
            path=CHECKSUMS + piece.path,
            shape=(piece.blocks,),
            dtype="uint32",
            values=np.array(crcs, "<u4"),
            first_row=piece.block or 0,
            of_root=piece.of_root,
        )
        extended += [piece, guard]
    return extended


def select_guards(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces with checksums among ``pieces``."""
    return [piece for piece in pieces if piece.path.startswith(CHECKSUMS)]


def create(
    file: h5py.File,
    header: Header,
    pieces: Sequence[Piece],
    checksums: Sequence[Sequence[np.ndarray]],
) -> dict[str, int]:
    """Write the attributes and create every dataset without values; return the file offset of each
    dataset.

    ``checksums``: each rank's checksums, an array for each of `select_guards`. `istmpi.hdf5.seal`
    is called unless they are ().
    """
    for name, value in _attributes(header).items():
        set_attribute(file, name, value)
    offsets = {}
    for piece in pieces:
        dataset = _allocate(file, piece)
        if piece.axes is not None:
            set_attribute(dataset, "axes", piece.axes)
        # A dataset without values has no place in the file.
        offsets[piece.path] = dataset.id.get_offset() or 0
    if checksums:
        guards = [guard.path for guard in select_guards(pieces)]
        seal(
            file,
            {path: np.concatenate(parts) for path, *parts in zip(guards, *checksums, strict=True)},
        )
    return offsets


def _attributes(header: Header) -> dict[str, str | int | float]:
    attributes: dict[str, str | int | float] = {
        "format": FORMAT,
        "version": VERSION,
        "seed": header.run.train.seed,
    }
    for name, value in header.tree().items():
        # No value equals `...`: attributes without such a default are always written.
        if value == _LEFT_OUT.get(name, ...):
            continue
        if name == "data" and not value["columns"]:
            del value["columns"]
        if not isinstance(value, int | float):
            value = json.dumps(value)
        attributes[name] = value
    return attributes


def room_for_structure(header: Header, pieces: Sequence[Piece]) -> int:
    """Return an upper bound for the bytes of a file without the datasets' values."""
    texts = sum(len(str(value)) for value in _attributes(header).values())
    descriptions = sum(2**10 + len(piece.path) + len(piece.axes or "") for piece in pieces)
    return 2**16 + 2 * texts + descriptions


def require_storable(header: Header, pieces: Iterable[Piece]) -> None:
    """Try to create a file in memory. Raises ConfigError if HDF5 or TOML cannot store a setting or
    a name."""
    try:
        with h5py.File("rehearsal", "w", driver="core", backing_store=False, **CREATION) as file:
            create(file, header, [*pieces], ())
        header.run.toml().encode()
    except (OSError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"run {header.run.name!a}: its settings cannot be saved ({error}). "
            "Use Unicode text and 64-bit numbers in settings, path and class names."
        ) from None


def _allocate(file: h5py.File, piece: Piece) -> h5py.Dataset:
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    # Ranks write rows at fixed offsets, without HDF5.
    settings.set_layout(h5py.h5d.CONTIGUOUS)
    settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    # Files of equal contents have equal bytes.
    settings.set_obj_track_times(False)
    group, _, name = piece.path.rpartition("/")
    space = h5py.h5s.create_simple(piece.shape)
    place = file.require_group(group)
    return h5py.Dataset(
        h5py.h5d.create(place.id, name.encode(), hdf5_type(piece.dtype), space, settings)
    )


def read_header(file: h5py.File, path: Path) -> Header:
    """Read the root attributes. Raises DataError if one is missing or has a wrong value."""
    values = {}
    attributes = file.attrs
    for item in dataclasses.fields(Header):
        if item.name in attributes:
            values[item.name] = _plain(attributes[item.name], item.name, path)
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise DataError(f"{path} is damaged: it has no attribute {item.name}.")
    try:
        values["run"] = Run.from_tree(values["run"], str(path))
    except ConfigError as error:
        raise DataError(f"{path}: its run cannot be read ({error}).") from None
    # Keys of JSON are text.
    for name in ("shares", "most_examples"):
        if name in values:
            values[name] = {int(number): value for number, value in values[name].items()}
    for name, hint in find_types(Header).items():
        if name in values and name != "run":
            values[name] = convert_value(values[name], hint, f"its attribute {name}")
    # A file leaves it out if it has not changed since the start.
    if 0 not in values.get("most_examples", {0: 1}):
        raise DataError(
            f"{path} is damaged: its attribute most_examples does not begin at round 0."
        )
    header = Header(**values)
    seed = attributes.get("seed")
    if seed != header.run.train.seed:
        raise DataError(
            f"{path} is damaged: its seed is {shown(seed)}, "
            f"that of its run {header.run.train.seed}."
        )
    return header


def _plain(value: Any, name: str, path: Path) -> Any:
    if isinstance(value, np.integer | np.floating):
        return value.item()
    try:
        tree = json.loads(plain(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged: its attribute {name} is not readable JSON ({error})."
        ) from None
    if not isinstance(tree, dict):
        raise DataError(f"{path} is damaged: its attribute {name} is not a JSON object.")
    return tree
