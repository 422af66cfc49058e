"""Makes all ranks agree on the datasets of a file and on their checksums, each in one message."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from istmpi.checkpoint.format import Piece, select_guards
from istmpi.comm import Communicator
from istmpi.errors import IstmpiError
from istmpi.hdf5 import CHECKSUMS

_NONE = -1

Described = Sequence[tuple[int, Piece]]
"""Pieces that rank 0 alone lists, with their places in its list; only checksums have values."""


def describe_pieces_of_root(pieces: Sequence[Piece]) -> Described:
    """Return what other ranks must know of the pieces that this rank, rank 0, alone lists."""
    described = []
    for place, piece in enumerate(pieces):
        if not piece.of_root:
            continue
        if not piece.path.startswith(CHECKSUMS):
            piece = replace(piece, values=np.empty(0, np.uint8))
        described.append((place, piece))
    return described


def complete(pieces: Sequence[Piece], described: Described) -> list[Piece]:
    """Return a rank's pieces as rank 0 lists them."""
    completed = [piece for piece in pieces if not piece.of_root]
    # In the order of their places, each is in its place once those before it are.
    for place, piece in described:
        completed.insert(place, piece)
    return completed


def gather_checksums(
    pieces: Sequence[Piece], communicator: Communicator, refusal: IstmpiError | None
) -> list[list[np.ndarray]]:
    """Return each rank's checksums, an array for each dataset of ``pieces``. Collective, in one
    call.

    ``refusal``: why this rank must not save; all ranks then raise it.
    """
    guards = select_guards(pieces)
    common = [guard.values for guard in guards if not guard.of_root]
    # A rank that writes nothing of a dataset has no checksum there.
    part = np.full(1 + len(common), _NONE, dtype=np.int64)
    part[0] = refusal is not None
    for number, crcs in enumerate(common, start=1):
        part[number : number + 1][: len(crcs)] = crcs
    joined = communicator.allgatherv(part, [part.size] * communicator.size)
    table = joined.reshape(communicator.size, part.size)
    if table[:, 0].any():
        with communicator.agreed():
            if refusal:
                raise refusal
    by_rank = []
    for rank, row in enumerate(table[:, 1:]):
        received = iter(row.reshape(-1, 1))
        checksums = []
        for guard in guards:
            if not guard.of_root:
                crcs = next(received)
                checksums.append(crcs[crcs != _NONE].astype("<u4"))
            elif rank == 0:
                checksums.append(guard.values)
            else:
                checksums.append(guard.values[:0])
        by_rank.append(checksums)
    return by_rank
