"""Writes checkpoints in parts: a file of each rank's rows, for hosts that share no folder."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from istmpi.checkpoint.format import (
    Header,
    Piece,
    add_checksums,
    create,
    room_for_structure,
)
from istmpi.checkpoint.listing import complete, describe_pieces_of_root, gather_checksums
from istmpi.checkpoint.writers import Rows
from istmpi.comm import Communicator
from istmpi.errors import IstmpiError
from istmpi.files import name_at_last, sync, temporary, writing
from istmpi.hdf5 import CHECKSUMS, new_file


def commit_part(
    folder: Path,
    header: Header,
    pieces: Sequence[Piece],
    communicator: Communicator,
    refusal: IstmpiError | None = None,
) -> None:
    """Write this rank's part of a checkpoint into the folder of its round. Collective.

    Parts get their names when all of them are on disk. Raises OutputError on every rank if any
    rank cannot write, and the ``refusal`` of a rank that must not save.
    """
    path = folder / f"rank-{communicator.rank}.h5"
    # Beside the folder, which exists only once a part in it is complete.
    beside = temporary(folder.with_name(f"{folder.name}.{path.name}"))
    try:
        with communicator.agreed(), writing(path):
            _write_part(beside, header, add_checksums(pieces), communicator, refusal)
        with communicator.agreed(), writing(path):
            folder.mkdir(exist_ok=True)
            name_at_last(beside, path)
            sync(folder.parent)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def _write_part(
    path: Path,
    header: Header,
    pieces: Sequence[Piece],
    communicator: Communicator,
    refusal: IstmpiError | None,
) -> None:
    """Write a file with the layout and the checksums of all ranks' rows, and this rank's rows."""
    # The header is rank 0's, because times differ.
    header, described = communicator.broadcast_from_root((header, describe_pieces_of_root(pieces)))
    if communicator.rank:
        pieces = complete(pieces, described)
    checksums = gather_checksums(pieces, communicator, refusal)
    with new_file(path, room_for_structure(header, pieces)) as file:
        offsets = create(file, header, pieces, checksums)
    rows = Rows(path)
    guards = []
    for piece in pieces:
        if piece.path.startswith(CHECKSUMS):
            guards.append(piece)
        else:
            rows.write(piece.bytes, offsets[piece.path] + piece.first_byte)
    for guard, *of_ranks in zip(guards, *checksums, strict=True):
        rows.write(np.concatenate(of_ranks).view(np.uint8), offsets[guard.path])
    rows.close()
