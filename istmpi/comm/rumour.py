"""News that reaches every rank without any of them waiting for it."""

from typing import Any

from istmpi.comm.communicator import Communicator


class Rumour:
    """A word that any rank may spread at any time, and that every rank hears sooner or later without waiting for it.

    Who hears it first passes it on to the ranks 1, 2, 4, ... further on. `Rumour` is collective, `settle` too.
    """

    def __init__(self, communicator: Communicator):
        self._mpi = communicator.mpi.Dup()
        self._rank, self._size = communicator.rank, communicator.size
        self._steps = [2**power for power in range((self._size - 1).bit_length())]
        self._sent: list[Any] = []
        self._heard_from: set[int] = set()

    def spread(self, word: str) -> None:
        """Say it, once."""
        self._sent = [self._mpi.isend(word, (self._rank + step) % self._size) for step in self._steps]

    def heard(self) -> str:
        """The word that has arrived by now, or nothing."""
        from mpi4py import MPI

        status = MPI.Status()
        if not self._steps or not self._mpi.iprobe(status=status):
            return ""
        self._heard_from.add(status.source)
        return self._mpi.recv(source=status.source)

    def settle(self) -> None:
        """Receive what is still under way."""
        said = self._mpi.allgather(bool(self._sent))
        for step in self._steps:
            source = (self._rank - step) % self._size
            if said[source] and source not in self._heard_from:
                self._mpi.recv(source=source)
        for request in self._sent:
            request.wait()
        self._sent, self._heard_from = [], set()
