"""Facts of all ranks, from a single exchange."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from istmpi.comm import mpi
from istmpi.comm.communicator import Communicator
from istmpi.comm.hang_report import Member
from istmpi.comm.launcher import process_facts
from istmpi.environment import list_cores, read_boot

_SLOT = 2**9
"""Bytes of the message with the facts of a rank: enough for long names and many cores."""


def find_members(communicator: Communicator) -> list[Member]:
    """Return all ranks with their hosts and processes. Collective in the first call; later calls
    return the same list."""
    if communicator.members is None:
        communicator.members = communicator.allgather(_describe(communicator), _SLOT)
    return communicator.members


def list_neighbours(communicator: Communicator) -> list[Member]:
    """Return the ranks on this rank's host, in their order. Collective as `find_members`."""
    members = find_members(communicator)
    here = members[communicator.rank]
    return [member for member in members if member.machine == here.machine]


def has_a_rank_each(communicator: Communicator) -> bool:
    """Return True if each host has one rank. Collective as `find_members`."""
    hosts = {member.machine for member in find_members(communicator)}
    return len(hosts) == communicator.size


@contextmanager
def agreed_with_members(communicator: Communicator) -> Iterator[None]:
    """Run local work as `Communicator.agreed` does; the same message brings the facts of
    `find_members` to all ranks, which saves a round trip."""
    with communicator.agreed(_SLOT) as agreement:
        agreement.value = _describe(communicator)
        yield
    communicator.members = list(agreement.by_rank)


def _describe(communicator: Communicator) -> Member:
    """Return the host and process of this rank."""
    process = os.getpid()
    _, started = process_facts(process)
    return Member(
        rank=communicator.rank,
        host=socket.gethostname(),
        process=process,
        started=started,
        threads_may_call=mpi.threads_may_call(),
        # A part of it is enough, and a shorter message.
        boot=read_boot()[:8],
        cores=_to_bits(list_cores()),
    )


def _to_bits(cores: Sequence[int]) -> int:
    """Return a number with the bits of cores, which is shorter than their list."""
    return sum(1 << core for core in cores)


def threads_may_call_everywhere(communicator: Communicator) -> bool:
    """Return True if threads may call MPI on all ranks. Collective as `find_members`."""
    return all(member.threads_may_call for member in find_members(communicator))
