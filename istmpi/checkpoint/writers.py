"""Three ways to write one file from all ranks: with parallel HDF5 (mpio), without it (direct), or
by rank 0 alone (root), for hosts that share no folder. The bytes are equal.

Rank 0 first creates the file and all its datasets. A writer leaves a complete file at rank 0's
``path``, with rank 0's header, or raises OSError on the ranks that failed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np

from istmpi.checkpoint.format import Header, Piece, create, room_for_structure
from istmpi.checkpoint.listing import complete, describe_pieces_of_root, gather_checksums
from istmpi.comm import Communicator
from istmpi.errors import ConfigError, IstmpiError
from istmpi.hdf5 import hdf5_type, new_file

_AT_ONCE = 2**30
"""The most bytes of one write; older libraries fail on more."""
MESSAGE = 2**24
"""The most bytes of one message to rank 0."""
NAME_BYTES = 256
"""Bytes for a file's name in a message: no file system has longer ones."""
PARTS = "parts"
"""The choice of a file for each rank's rows (`istmpi.checkpoint.per_host`)."""

Write = Callable[[Path, Mapping[str, int], Sequence[Piece], Communicator], None]
"""Writes rows to a file that rank 0 has created, at the file offsets of its datasets."""


def has_parallel_hdf5() -> bool:
    """Return True if this process can write with parallel HDF5."""
    return bool(h5py.get_config().mpi)


def choose(choice: str, parallel: bool, unseen: str = "") -> str:
    """Return the writer of one file: ``choice``, or for ``auto`` and ``parts`` the best one of all
    ranks; call it on all of them. ConfigError if a rank lacks it. ``parallel``: True if all ranks
    have parallel HDF5. ``unseen`` says which rank does not see the folder; empty if all ranks see
    it (`istmpi.checkpoint.sight`)."""
    problem = ""
    if unseen and choice in ("direct", "mpio"):
        problem = (
            f"checkpoint.writer = {choice!r} needs a folder that all ranks see, but {unseen}. "
            "Give another --out, or leave writer out: then each rank writes a file of its rows."
        )
    elif choice == "mpio" and not parallel:
        problem = (
            "checkpoint.writer = 'mpio' needs an h5py built with MPI (docs/install.md). "
            "Or use direct, which writes the same file."
        )
    if problem:
        error = ConfigError(problem)
        error.everywhere = True
        raise error
    if choice not in ("auto", PARTS):
        return choice
    if unseen:
        return "root"
    if parallel:
        return "mpio"
    return "direct"


def write_file(
    writer: str,
    path: Path,
    header: Header,
    pieces: Sequence[Piece],
    communicator: Communicator,
    refusal: IstmpiError | None = None,
) -> None:
    """Write one file from all ranks, by the writer of a name in `WRITERS`. Collective.

    ``refusal``: why this rank must not save, which all ranks then raise; None if it may.
    """
    path, offsets = _lay_out(path, header, pieces, communicator, refusal)
    WRITERS[writer](path, offsets, pieces, communicator)


def direct(
    path: Path, offsets: Mapping[str, int], pieces: Sequence[Piece], communicator: Communicator
) -> None:
    """Write each rank's rows independently, at the datasets' file offsets. Collective."""
    # decision 41: not MPI-IO, which may hold a lock, or gather rows over the slow network.
    rows = Rows(path)
    for piece in pieces:
        rows.write(piece.bytes, offsets[piece.path] + piece.first_byte)
    rows.close()


def root(
    path: Path, offsets: Mapping[str, int], pieces: Sequence[Piece], communicator: Communicator
) -> None:
    """Let rank 0 write all ranks' rows, which they send to it one after the other. Collective.

    Rank 0 has one message of another rank in memory, of at most `MESSAGE` bytes. If it cannot
    write, it receives to the end, because the other ranks wait for it.
    """
    places = [(offsets[piece.path] + piece.first_byte, piece.bytes.size) for piece in pieces]
    per_rank = communicator.gather_to_root(places)
    with communicator.waiting("rows"):
        if per_rank is None:
            for piece in pieces:
                for part in _cut(piece.bytes):
                    communicator.send(part, 0)
            return
        rows = Rows(path)
        for piece, (offset, _) in zip(pieces, places, strict=True):
            rows.write(piece.bytes, offset)
        for rank, places_there in enumerate(per_rank[1:], start=1):
            for offset, nbytes in places_there:
                rows.write_all(receive(nbytes, rank, communicator), offset)
        rows.close()


def receive(nbytes: int, rank: int, communicator: Communicator) -> Iterator[np.ndarray]:
    """Yield the bytes that a rank sends in messages of `MESSAGE`; each lasts until the next."""
    buffer = np.empty(min(nbytes, MESSAGE), dtype=np.uint8)
    for start in range(0, nbytes, MESSAGE):
        message = buffer[: nbytes - start]
        communicator.receive(message, rank)
        yield message


def _cut(values: np.ndarray) -> Iterator[np.ndarray]:
    """Yield views of bytes, of at most `MESSAGE` each."""
    for start in range(0, values.size, MESSAGE):
        yield values[start : start + MESSAGE]


class Rows:
    """A file to which rows are written. The first error is raised when it is closed."""

    def __init__(self, path: Path):
        self._failure: OSError | None = None
        try:
            self._descriptor = os.open(path, os.O_WRONLY)
        except OSError as error:
            self._failure = error

    def write(self, values: np.ndarray, offset: int) -> None:
        """Write bytes at an offset, unless an earlier write has failed."""
        if self._failure:
            return
        try:
            _write_at(self._descriptor, values, offset)
        except OSError as error:
            self._failure = error
            os.close(self._descriptor)

    def write_all(self, messages: Iterable[np.ndarray], offset: int) -> None:
        """Write the bytes of messages one after the other."""
        for message in messages:
            self.write(message, offset)
            offset += message.size

    def close(self) -> None:
        if self._failure:
            raise self._failure
        try:
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)


def _write_at(descriptor: int, values: np.ndarray, offset: int) -> None:
    done = 0
    # A write may stop before its end, for example at a limit of the library.
    while done < len(values):
        part = values[done : done + _AT_ONCE].data
        done += os.pwrite(descriptor, part, offset + done)


def mpio(
    path: Path, offsets: Mapping[str, int], pieces: Sequence[Piece], communicator: Communicator
) -> None:
    """Write all ranks' rows together, by parallel HDF5; a rank that fails still takes part in every
    collective call."""
    # In parallel HDF5 all ranks write to all datasets.
    described = communicator.broadcast_from_root(describe_pieces_of_root(pieces))
    if communicator.rank:
        pieces = complete(pieces, described)
    own_rows = [len(piece.bytes) // piece.row_bytes for piece in pieces]
    # Every rank makes as many collective calls as the rank with most rows.
    most_rows = np.max(communicator.allgather(own_rows), axis=0)
    collective = h5py.h5p.create(h5py.h5p.DATASET_XFER)
    collective.set_dxpl_mpio(h5py.h5fd.MPIO_COLLECTIVE)
    failure: OSError | None = None
    with (
        communicator.waiting("HDF5"),
        h5py.File(path, "r+", driver="mpio", comm=communicator.mpi) as file,
    ):
        for piece, rows in zip(pieces, most_rows, strict=True):
            step = max(_AT_ONCE // piece.row_bytes, 1)
            for start in range(0, rows, step):
                try:
                    _write_rows(file[piece.path].id, piece, start, start + step, collective)
                except OSError as error:
                    # The other ranks wait for this one in the next call.
                    failure = failure or error
        file.flush()
    if failure:
        raise failure


def _lay_out(
    path: Path,
    header: Header,
    pieces: Sequence[Piece],
    communicator: Communicator,
    refusal: IstmpiError | None,
) -> tuple[Path, dict[str, int]]:
    """Let rank 0 create the file at its path, without the rows; return its path, and each dataset's
    file offset, on every rank. Collective.

    A full disk can then only affect rows, not the file's structure. All ranks raise the ``refusal``
    of a rank before there is a file.
    """
    offsets: dict[str, int] = {}
    failure: OSError | None = None
    checksums = gather_checksums(pieces, communicator, refusal)
    if communicator.rank == 0:
        try:
            with new_file(path, room_for_structure(header, pieces)) as file:
                offsets = create(file, header, pieces, checksums)
        except OSError as error:
            failure = error
    # Of a length that all ranks know: the file's name, the number of failures, then offsets.
    common = [piece.path for piece in pieces if not piece.of_root]
    numbers = [failure is not None, *(offsets.get(path, 0) for path in common)]
    name = os.fsencode(path.name)[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
    message = np.frombuffer(name + np.array(numbers, np.int64).tobytes(), np.uint8).copy()
    communicator.broadcast(message, 0)
    failures, *received = message[NAME_BYTES:].view(np.int64).tolist()
    if failures:
        failure = communicator.broadcast_from_root(failure)
        assert failure is not None, "rank 0 has counted it"
        raise failure
    if communicator.rank == 0:
        return path, offsets
    name_of_root = message[:NAME_BYTES].tobytes().rstrip(b"\0")
    return path.with_name(os.fsdecode(name_of_root)), dict(zip(common, received, strict=True))


def _write_rows(
    dataset: h5py.h5d.DatasetID, piece: Piece, start: int, stop: int, collective: h5py.h5p.PropDXID
) -> None:
    """Write this rank's rows ``start`` to ``stop``, if any. Collective."""
    values = piece.bytes[start * piece.row_bytes : stop * piece.row_bytes]
    rows = len(values) // piece.row_bytes
    in_file = dataset.get_space()
    if rows:
        first = (piece.first_row + start,) + (0,) * (len(piece.shape) - 1)
        count = (rows, *piece.shape[1:])
        in_file.select_hyperslab(first, count)
        in_memory = h5py.h5s.create_simple(count)
    else:
        # A rank without rows takes part in the call, and writes nothing.
        in_file.select_none()
        in_memory = h5py.h5s.create_simple((1,))
        in_memory.select_none()
    dataset.write(in_memory, in_file, values, hdf5_type(piece.dtype), collective)


WRITERS: dict[str, Write] = {"mpio": mpio, "direct": direct, "root": root}
