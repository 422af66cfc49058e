"""Calls of MPI that are not believed where a rank was lost.

Open MPI 5 may return success from a collective call that a lost rank did not come to, with what never arrived in the
buffers. And it may never be done, nor fail, with a message to a rank that is there but has noticed a loss and receives
no more: neither with MPI_Isend nor with MPI_Ialltoallv, although the communicator is revoked. But each rank knows by
then that one is lost, or that another rank has noticed it: so who waits asks for that as well.
"""

from collections.abc import Iterable
from typing import Any

from istmpi.comm import mpi
from istmpi.comm.backoff import Backoff

_kept: list[object] = []


def keep(*requests: object) -> None:
    """Keep to the end of the process requests that are waited for no more, and memory that they may be about.

    MPI may still write there. And mpi4py frees a request with its last reference: where its message then fails, Open
    MPI ends the job.
    """
    _kept.extend(requests)


def over(requests: Iterable[Any]) -> list[Any]:
    """Those that are done or have failed for good.

    MPI_Test also frees those that have failed but are still under way; once they are not, Open MPI ends the job.
    """
    MPI = mpi.library_here()
    return [request for request in requests if request != MPI.REQUEST_NULL and request.Get_status()]


class Guarded:
    """An mpi4py communicator that can be asked whether a rank of it is lost."""

    def __init__(self, communicator: Any):
        self.unguarded = communicator

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)

    def Dup(self) -> Any:
        """The same ranks once more. Collective; who loses a rank while it waits in MPI_Comm_dup itself crashes."""
        request, backoff = self.unguarded.Ibarrier(), Backoff(self.require_all)
        while not request.Test():
            backoff.wait_unless(False)
        self.require_all()
        return self.unguarded.Dup()

    def require_all(self) -> None:
        """Raise what MPI raises for a lost rank, where this rank knows of one. Local."""
        MPI = mpi.library_here()
        if self.unguarded.Is_revoked():
            raise MPI.Exception(MPI.ERR_REVOKED)
        failed = self.unguarded.Get_failed()
        count = failed.Get_size()
        failed.Free()
        if count:
            raise MPI.Exception(MPI.ERR_PROC_FAILED)
