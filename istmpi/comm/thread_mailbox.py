"""Messages between threads of ranks, for which neither sender nor receiver ever waits."""

import time
from typing import Any

from istmpi.comm import mpi

_PROBES = 4
"""Probes in vain until nothing has come: MPICH moves a message by a step at each, and sees it after some."""
_BETWEEN_LOOKS = 1e-4


class ThreadMailbox:
    """Pickled messages over an MPI communicator that nobody else uses; ranks are its own. For one thread a rank."""

    def __init__(self, communicator: Any):
        self._mpi = communicator
        self._sent: list[Any] = []
        self._last: Any = None
        self._arriving: list[tuple[int, Any]] = []

    def send(self, rank: int, *message: object) -> None:
        self._under_way()
        self._sent.append(self._mpi.issend(message, rank))

    def send_unless_last_is_under_way(self, rank: int, *message: object) -> None:
        """Begin to send a message unless the last one that was sent by this is not received yet."""
        if self._last is None or self._last.test()[0]:
            self._last = self._mpi.issend(message, rank)

    def received(self) -> list[tuple[int, tuple]]:
        """The messages that have come, each with the rank that sent it."""
        status, in_vain = mpi.if_up().Status(), 0
        while in_vain < _PROBES:
            if message := self._mpi.improbe(status=status):
                self._arriving.append((status.source, message.irecv()))
            else:
                in_vain += 1
        tested = [(source, request, *request.test()) for source, request in self._arriving]
        self._arriving = [(source, request) for source, request, done, _ in tested if not done]
        return [(source, message) for source, _, done, message in tested if done]

    def close(self) -> None:
        """Receive and drop what is still under way, and free the communicator. Collective.

        A send is done only once its message is received: behind a barrier of ranks without sends nothing is under way.
        """
        if self._last is not None:
            self._sent.append(self._last)
        while self._under_way():
            self._drain()
        request = self._mpi.Ibarrier()
        while not request.Test():
            self._drain()
        self._mpi.Free()

    def _under_way(self) -> bool:
        self._sent = [request for request in self._sent if not request.test()[0]]
        return bool(self._sent)

    def _drain(self) -> None:
        self.received()
        time.sleep(_BETWEEN_LOOKS)
