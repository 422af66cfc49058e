"""Copies the rows of a checkpoint that a rank reads from files of other hosts, by MPI.

A rank's copy has the layout of the whole file; rows that the rank does not read stay holes. No rank
has more than a message in memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import h5py
import numpy as np

from istmpi.checkpoint.parts import find_saver
from istmpi.checkpoint.writers import MESSAGE, Rows, receive
from istmpi.comm import Communicator
from istmpi.engine.layout import cut
from istmpi.files import temporary, writing
from istmpi.hdf5 import LOCKING, datasets, read_checksums


@dataclass(frozen=True)
class Extent:
    """A dataset's place in a file, and its blocks, which have a checksum each."""

    offset: int
    rows: int
    row_bytes: int
    blocks: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes

    def find_rows(self, block: int) -> range:
        return cut(self.rows, self.blocks, block)

    def locate(self, rows: range) -> range:
        """Return the bytes of some rows in the file."""
        first = self.offset + rows.start * self.row_bytes
        return range(first, first + len(rows) * self.row_bytes)


@dataclass(frozen=True)
class Layout:
    """The bytes of a file outside its datasets, and the places of the datasets."""

    size: int
    extents: Mapping[str, Extent]
    between: Sequence[tuple[int, bytes]]
    """The bytes before, between and after the rows of datasets, each with its place in the
    file."""

    @staticmethod
    def from_file(path: Path) -> "Layout":
        with h5py.File(path, "r", locking=LOCKING) as file:
            extents = {name: _measure(file, name) for name in datasets(file)}
        size = path.stat().st_size
        between = []
        end = 0
        with path.open("rb") as content:
            for extent in sorted(extents.values(), key=lambda extent: extent.offset):
                if not extent.nbytes:
                    continue
                content.seek(end)
                between.append((end, content.read(extent.offset - end)))
                end = extent.offset + extent.nbytes
            content.seek(end)
            between.append((end, content.read()))
        return Layout(size=size, extents=extents, between=between)

    def begin(self, path: Path) -> None:
        """Create a file whose rows are all holes. Raises OSError."""
        with path.open("xb") as file:
            file.truncate(self.size)
            for offset, content in self.between:
                file.seek(offset)
                file.write(content)


def _measure(file: h5py.File, name: str) -> Extent:
    dataset = file[name]
    checksums = read_checksums(file, name)
    blocks = 1
    if checksums is not None:
        blocks = len(checksums)
    return Extent(
        offset=dataset.id.get_offset() or 0,
        rows=dataset.shape[0],
        row_bytes=dataset.id.get_type().get_size() * prod(dataset.shape[1:]),
        blocks=blocks,
    )


def find_wanted(
    name: str, extent: Extent, block: int, saved_ranks: int, ranks: int, rank: int
) -> range:
    """Return the rows of a dataset's block that a rank reads when it resumes.

    `istmpi.checkpoint.state` reads them: owned rows, values of this rank alone, and all of what
    every rank has.
    """
    rows = extent.find_rows(block)
    folder = name.partition("/")[0]
    if folder in ("model", "optim"):
        owned = cut(extent.rows, ranks, rank)
        return range(max(rows.start, owned.start), min(rows.stop, owned.stop))
    # Every rank reads what all ranks have alike, such as the inputs' means.
    if folder != "partial" or (ranks == saved_ranks and block == rank):
        return rows
    if ranks == saved_ranks:
        return range(0)
    # Each rank takes the mean of its rows over all ranks of the saved run.
    part = cut(len(rows), ranks, rank)
    return range(rows.start + part.start, rows.start + part.stop)


def fetch(
    place: Path, files: Sequence[Path | None], sources: Sequence[int], communicator: Communicator
) -> Path:
    """Copy the rows that this rank reads into a new file beside ``place``; return its path.
    Collective.

    Part r of the checkpoint is read by rank ``sources[r]``, in its ``files[r]``. Raises OutputError
    on every rank if any rank cannot write its copy.
    """
    layout: Layout | None = None
    readers = {}
    with communicator.agreed():
        for part, file in enumerate(files):
            if file is not None and sources[part] == communicator.rank:
                readers[part] = Reader(file)
        if 0 in readers:
            layout = readers[0].layout
    layout = communicator.allgather(layout)[sources[0]]
    assert layout is not None, "the source of part 0 has read its layout"
    copy = temporary(place)
    with communicator.agreed(), writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        layout.begin(copy)
    try:
        with communicator.agreed(), writing(place), communicator.waiting("rows"):
            _move(layout, readers, sources, Rows(copy), communicator)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return copy


class Reader:
    """A file from which rows are sent."""

    def __init__(self, path: Path):
        self.layout = Layout.from_file(path)
        self._failure: OSError | None = None
        self._path = path

    def read(self, name: str, rows: range) -> Iterator[np.ndarray]:
        """Yield the bytes of some rows in messages. After a failure they are zeros, because the
        other rank waits for them."""
        place = self.layout.extents[name].locate(rows)
        with self._path.open("rb") as file:
            for start in range(place.start, place.stop, MESSAGE):
                message = np.zeros(min(MESSAGE, place.stop - start), dtype=np.uint8)
                try:
                    file.seek(start)
                    if file.readinto(message.data) < message.size:
                        raise OSError(f"{self._path} has become shorter")
                except OSError as error:
                    self._failure = error
                yield message

    def require_success(self) -> None:
        """Raise the OSError of a read that failed."""
        if self._failure:
            raise self._failure


def _move(
    layout: Layout,
    readers: Mapping[int, Reader],
    sources: Sequence[int],
    copy: Rows,
    communicator: Communicator,
) -> None:
    """Bring the rows that each rank reads to its copy; all ranks go through them in one order."""
    here = communicator.rank
    saved_ranks = len(sources)
    for name, extent in layout.extents.items():
        for block in range(extent.blocks):
            part = find_saver(saved_ranks, block, extent.blocks)
            source = sources[part]
            for rank in range(communicator.size):
                if here not in (source, rank):
                    continue
                rows = find_wanted(name, extent, block, saved_ranks, communicator.size, rank)
                if not rows:
                    continue
                if here == source:
                    messages = readers[part].read(name, rows)
                else:
                    messages = receive(len(extent.locate(rows)), source, communicator)
                _pass_on(messages, extent.locate(rows), rank, copy, communicator)
    for reader in readers.values():
        reader.require_success()
    copy.close()


def _pass_on(
    messages: Iterator[np.ndarray], place: range, rank: int, copy: Rows, communicator: Communicator
) -> None:
    """Write messages into this rank's copy, or send them to the rank that reads them."""
    if rank == communicator.rank:
        copy.write_all(messages, place.start)
        return
    for message in messages:
        communicator.send(message, rank)
