"""Two ways to write one file from all ranks: with parallel HDF5 (mpio), or without HDF5 (direct).
The bytes are equal.

Rank 0 first creates the file and all its datasets. A writer leaves a complete file at rank 0's
``path``, with rank 0's header, or raises OSError on the ranks that failed.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np

from istmpi.checkpoint.format import Header, Piece, create, room_for_structure, select_checksums
from istmpi.comm import Communicator
from istmpi.errors import ConfigError
from istmpi.hdf5 import hdf5_type, new_file

_AT_ONCE = 2**30
"""The most bytes of one write; older libraries fail on more."""

Write = Callable[[Path, Header, Sequence[Piece], Communicator], None]


def choose(choice: str, communicator: Communicator) -> str:
    """Return ``choice``, or for ``auto`` the best writer of all ranks. ConfigError if a rank lacks
    it. Collective."""
    parallel = all(communicator.allgather(h5py.get_config().mpi))
    if choice == "mpio" and not parallel:
        raise ConfigError(
            "checkpoint.writer = 'mpio' needs an h5py built with MPI (docs/install.md). "
            "Or use direct, which writes the same file."
        )
    if choice != "auto":
        return choice
    if parallel:
        return "mpio"
    return "direct"


def direct(path: Path, header: Header, pieces: Sequence[Piece], communicator: Communicator) -> None:
    """Write each rank's rows independently, at the datasets' file offsets. Collective."""
    # decision 41: not MPI-IO, which may hold a lock, or gather rows over the slow network.
    path, offsets = _lay_out(path, header, pieces, communicator)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for piece in pieces:
            offset = offsets[piece.path] + piece.first_row * piece.row_bytes
            values = piece.bytes.data
            done = 0
            # A write may stop before its end, for example at a limit of the library.
            while done < len(values):
                done += os.pwrite(descriptor, values[done : done + _AT_ONCE], offset + done)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mpio(path: Path, header: Header, pieces: Sequence[Piece], communicator: Communicator) -> None:
    """Write all ranks' rows together, by parallel HDF5; a rank that fails still takes part in every
    collective call."""
    path, _ = _lay_out(path, header, pieces, communicator)
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
    path: Path, header: Header, pieces: Sequence[Piece], communicator: Communicator
) -> tuple[Path, dict[str, int]]:
    """Let rank 0 create the file at its path, without the rows; return its path, and each dataset's
    file offset, on every rank. Collective.

    A full disk can then only affect rows, not the file's structure.
    """
    outcome: dict[str, int] | OSError = {}
    checksums = communicator.gather_to_root(select_checksums(pieces))
    if checksums is not None:  # on rank 0
        try:
            with new_file(path, room_for_structure(header, pieces)) as file:
                outcome = create(file, header, pieces, checksums)
        except OSError as error:
            outcome = error
    path, outcome = communicator.broadcast_from_root((path, outcome))
    if isinstance(outcome, OSError):
        raise outcome
    return path, outcome


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


WRITERS: dict[str, Write] = {"mpio": mpio, "direct": direct}
