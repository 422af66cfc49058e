"""Two ways to write one file from all ranks: with parallel HDF5 (mpio), or without HDF5 (direct).
The bytes are equal.

Rank 0 first creates the file and all its datasets. A writer leaves a complete file at ``path``, or
raises OSError on the ranks that failed.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np

from istmpi.checkpoint.format import Header, Piece, create, parts_of_checksums, room_for_structure
from istmpi.comm import Communicator
from istmpi.errors import ConfigError
from istmpi.hdf5 import hdf5_type, new_file

_AT_ONCE = 2**30
"""The most bytes of one write; older libraries fail on more."""

Write = Callable[[Path, Header, Sequence[Piece], Communicator], None]


def available(communicator: Communicator) -> list[str]:
    parallel = all(communicator.allgather(h5py.get_config().mpi))
    return ["mpio", "direct"] if parallel else ["direct"]


def choose(choice: str, communicator: Communicator) -> str:
    """Return ``choice``, or for ``auto`` the first writer of all ranks. ConfigError if a rank lacks
    it. Collective."""
    able = available(communicator)
    if choice == "mpio" and choice not in able:
        raise ConfigError(
            "checkpoint.writer = 'mpio' needs an h5py built with MPI (docs/install.md). Or use direct, which "
            "writes the same file."
        )
    return able[0] if choice == "auto" else choice


def direct(path: Path, header: Header, pieces: Sequence[Piece], communicator: Communicator) -> None:
    """Write each rank's rows independently, at the datasets' file offsets. Collective."""
    # decision 41: not MPI-IO, which may hold a lock, or gather rows over the slow network.
    offsets = _lay_out(path, header, pieces, communicator)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for piece in pieces:
            at, values = offsets[piece.path] + piece.first_row * piece.row_bytes, piece.bytes
            done = 0
            while done < len(values):
                done += os.pwrite(descriptor, values[done : done + _AT_ONCE], at + done)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mpio(path: Path, header: Header, pieces: Sequence[Piece], communicator: Communicator) -> None:
    """Write all ranks' rows together, by parallel HDF5; a rank that fails still takes part in every
    collective call."""
    _lay_out(path, header, pieces, communicator)
    most_rows = np.max(
        communicator.allgather([len(piece.bytes) // piece.row_bytes for piece in pieces]), axis=0
    )
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
                    failure = failure or error
        file.flush()
    if failure:
        raise failure


def _lay_out(
    path: Path, header: Header, pieces: Sequence[Piece], communicator: Communicator
) -> dict[str, int]:
    """Let rank 0 create the file without the rows; return each dataset's file offset on every rank.
    Collective.

    A full disk can then only affect rows, not the file's structure.
    """
    made: dict[str, int] | OSError = {}
    checksums = communicator.gather_to_root(parts_of_checksums(pieces))
    if communicator.rank == 0:
        try:
            with new_file(path, room_for_structure(header, pieces)) as file:
                made = create(file, header, pieces, checksums)
        except OSError as error:
            made = error
    made = communicator.broadcast_from_root(made)
    if isinstance(made, OSError):
        raise made
    return made


def _write_rows(
    dataset: h5py.h5d.DatasetID, piece: Piece, start: int, stop: int, collective: h5py.h5p.PropDXID
) -> None:
    """Write this rank's rows ``start`` to ``stop``, if any. Collective."""
    values = piece.bytes[start * piece.row_bytes : stop * piece.row_bytes]
    rows = len(values) // piece.row_bytes
    here = dataset.get_space()
    if rows:
        count = (rows, *piece.shape[1:])
        here.select_hyperslab((piece.first_row + start, *(0 for _ in piece.shape[1:])), count)
        there = h5py.h5s.create_simple(count)
    else:
        here.select_none()
        there = h5py.h5s.create_simple((1,))
        there.select_none()
    dataset.write(there, here, values, hdf5_type(piece.dtype), collective)


WRITERS: dict[str, Write] = {"mpio": mpio, "direct": direct}
