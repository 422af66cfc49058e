"""Facts of all ranks, from a single exchange."""

import os
import socket

from istmpi.comm import mpi
from istmpi.comm.communicator import Communicator
from istmpi.comm.hang_report import Member
from istmpi.comm.launcher import process_facts


def find_members(communicator: Communicator) -> list[Member]:
    """Return all ranks with their hosts and processes. Collective in the first call; later calls
    return the same list."""
    if communicator.members is None:
        process = os.getpid()
        _, started = process_facts(process)
        member = Member(
            rank=communicator.rank,
            host=socket.gethostname(),
            process=process,
            started=started,
            threads_may_call=mpi.threads_may_call(),
        )
        communicator.members = communicator.allgather(member)
    return communicator.members


def threads_may_call_everywhere(communicator: Communicator) -> bool:
    """Return True if threads may call MPI on all ranks. Collective as `find_members`."""
    return all(member.threads_may_call for member in find_members(communicator))
