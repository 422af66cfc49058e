"""Messages that a thread of one rank sends to a thread of another, and that neither of them ever waits for."""

import time
from typing import Any

from istmpi.comm import mpi

_PROBES = 4
"""In vain, until nothing has come: MPICH moves a message on by a step at each, and sees it after some."""
_BETWEEN_LOOKS = 1e-4
"""Seconds, while it is closed."""


class Post:
    """Messages of any kind over an MPI communicator that nobody else uses; ranks are its own. From one thread."""

    def __init__(self, communicator: Any):
        self._mpi = communicator
        self._sent: list[Any] = []
        self._last: Any = None
        self._arriving: list[tuple[int, Any]] = []

    def send(self, rank: int, *message: Any) -> None:
        """Send a message of pickled values."""
        self._sent = [request for request in self._sent if not request.test()[0]]
        self._sent.append(self._mpi.issend(message, rank))

    def send_unless_last_is_under_way(self, rank: int, *message: Any) -> None:
        """Send a message unless the last one that was sent by this is not received yet."""
        if self._last is None or self._last.test()[0]:
            self._last = self._mpi.issend(message, rank)

    def received(self) -> list[tuple[int, tuple]]:
        """What has come, with the rank that sent it; nothing is waited for."""
        status, vain = mpi.if_up().Status(), 0
        while vain < _PROBES:
            if message := self._mpi.improbe(status=status):
                self._arriving.append((status.source, message.irecv()))
            else:
                vain += 1
        tried = [(source, request, request.test()) for source, request in self._arriving]
        self._arriving = [(source, request) for source, request, (done, _) in tried if not done]
        return [(source, value) for source, _, (done, value) in tried if done]

    def close(self) -> None:
        """Receive what is still under way, to no end, and free the communicator. Collective.

        Every message was sent so that it is done only once it is received: when all ranks have come to a barrier with
        none of their own under way, there is none.
        """

        def drain() -> None:
            self.received()
            time.sleep(_BETWEEN_LOOKS)

        if self._last is not None:
            self._sent.append(self._last)
        while self._sent:
            self._sent = [request for request in self._sent if not request.test()[0]]
            drain()
        request = self._mpi.Ibarrier()
        while not request.Test():
            drain()
        self._mpi.Free()
