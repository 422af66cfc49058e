"""Facts of all ranks, from a single exchange."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from istmpi.comm import mpi
from istmpi.comm.communicator import Communicator
from istmpi.comm.hang_report import Member
from istmpi.comm.launcher import process_facts
from istmpi.environment import read_boot


def find_members(communicator: Communicator) -> list[Member]:
    """Return all ranks with their hosts and processes. Collective in the first call; later calls
    return the same list."""
    if communicator.members is None:
        communicator.members = communicator.allgather(_describe(communicator))
    return communicator.members


@contextmanager
def on_this_host(communicator: Communicator) -> Iterator[Communicator]:
    """Open a communicator of the ranks on this host. Collective, also at the end of the block."""
    with communicator.among(_list_neighbours(communicator)) as local:
        assert local is not None, "a rank is on its own host"
        yield local


def _list_neighbours(communicator: Communicator) -> list[int]:
    """Return the ranks on this host. Collective as `find_members`."""
    # MPI's split by host would spin until the last rank is there, on a core that it may need.
    members = find_members(communicator)
    here = members[communicator.rank]
    return [rank for rank, member in enumerate(members) if member.machine == here.machine]


def has_a_rank_each(communicator: Communicator) -> bool:
    """Return True if each host has one rank. Collective as `find_members`."""
    hosts = {member.machine for member in find_members(communicator)}
    return len(hosts) == communicator.size


@contextmanager
def agreed_with_members(communicator: Communicator) -> Iterator[None]:
    """Run local work as `Communicator.agreed` does; the same message brings the facts of
    `find_members` to all ranks, which saves a round trip."""
    with communicator.agreed() as agreement:
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
    )


def threads_may_call_everywhere(communicator: Communicator) -> bool:
    """Return True if threads may call MPI on all ranks. Collective as `find_members`."""
    return all(member.threads_may_call for member in find_members(communicator))
