"""Collective calls in which ranks send few bytes to each other at once.

MPI libraries let ranks pass few bytes on, log2 P times one after the other. This saves messages,
and takes as many trips on a slow network. ``MPI_Alltoallv`` sends all messages at once.
"""

from itertools import accumulate
from typing import Any

MOST_RANKS = 32
"""The most ranks that send at once: MPICH posts so many messages of ``MPI_Alltoallv`` together."""
MOST_BYTES = 2**16
"""The most bytes that a rank sends or receives so: a line of 10 Mbit/s carries them in 50 ms. In
calls of more bytes, MPI libraries let several ranks send a message on."""

Buffer = Any
"""An object that MPI reads or writes as bytes."""


def count_trips(ranks: int) -> int:
    """Return the messages of a call of few bytes that follow each other."""
    if ranks <= MOST_RANKS:
        return min(ranks - 1, 1)
    return (ranks - 1).bit_length()


def is_at_once(ranks: int, nbytes: int) -> bool:
    """Return True if ``ranks`` send at once in a call with messages of at most ``nbytes``."""
    return ranks <= MOST_RANKS and (ranks - 1) * nbytes <= MOST_BYTES


def gather_to_all(handle: Any, part: Buffer, whole: Buffer, lengths: list[int], byte: Any) -> Any:
    """Begin to join the parts of all ranks, of ``lengths`` bytes, in ``whole``; return the request.

    ``handle``: the mpi4py communicator. ``byte``: the MPI type.
    """
    ranks = len(lengths)
    starts = [*accumulate(lengths, initial=0)][:-1]
    if not is_at_once(ranks, max(lengths)):
        return handle.Iallgatherv([part, byte], [whole, lengths, starts, byte])
    nbytes = lengths[handle.Get_rank()]
    # All messages are the same bytes.
    sent = [part, [nbytes] * ranks, [0] * ranks, byte]
    return handle.Ialltoallv(sent, [whole, lengths, starts, byte])


def broadcast(handle: Any, values: Buffer, root: int, byte: Any) -> Any:
    """Begin to overwrite the bytes ``values`` with those of the root; return the request.

    ``handle``: the mpi4py communicator. ``byte``: the MPI type.
    """
    ranks = handle.Get_size()
    nbytes = len(values)
    if not is_at_once(ranks, nbytes):
        return handle.Ibcast([values, byte], root=root)
    nothing = [0] * ranks
    # Open MPI takes a call with one buffer for both directions as one in place.
    unused = [bytearray(1), nothing, nothing, byte]
    if handle.Get_rank() == root:
        lengths = [nbytes * (rank != root) for rank in range(ranks)]
        return handle.Ialltoallv([values, lengths, nothing, byte], unused)
    lengths = [nbytes * (rank == root) for rank in range(ranks)]
    return handle.Ialltoallv(unused, [values, lengths, nothing, byte])
