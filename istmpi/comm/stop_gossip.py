"""A wish to stop that reaches every rank without any of them waiting for it."""

from typing import Any

from istmpi.comm import mpi
from istmpi.comm.communicator import Communicator


class StopGossip:
    """A reason to stop that any rank may tell at any time, and that every rank learns sooner or later without waiting.

    Who learns it first passes it on to the ranks 1, 2, 4, ... further on. `StopGossip` is collective, `settle` too.
    """

    def __init__(self, communicator: Communicator):
        self._communicator = communicator.duplicate()
        self._mpi = self._communicator.mpi
        self._rank, self._size = communicator.rank, communicator.size
        self._steps = [2**power for power in range((self._size - 1).bit_length())]
        self._sent: list[Any] = []
        self._received_from: set[int] = set()

    def notify(self, reason: str) -> None:
        """Tell the ranks 1, 2, 4, ... further on; to be called once."""
        self._sent = [self._mpi.isend(reason, (self._rank + step) % self._size) for step in self._steps]

    def poll(self) -> str:
        """The reason that has arrived by now, or an empty text."""
        MPI = mpi.library_here()

        status = MPI.Status()
        if not self._steps or not self._mpi.iprobe(status=status):
            return ""
        self._received_from.add(status.source)
        return self._mpi.recv(source=status.source)

    def settle(self) -> None:
        """Receive what is still under way."""
        sent = self._communicator.allgather(bool(self._sent))
        for step in self._steps:
            source = (self._rank - step) % self._size
            if sent[source] and source not in self._received_from:
                self._mpi.recv(source=source)
        for request in self._sent:
            request.wait()
        self._sent, self._received_from = [], set()
