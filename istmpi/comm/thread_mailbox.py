"""Messages between threads of different ranks. Sends and receives never wait."""

import time
from typing import Any

from istmpi.comm import mpi

_PROBES = 4
"""The probes without a message after which a rank stops probing. MPICH moves a message one step at
a probe."""
_BETWEEN_LOOKS = 1e-4


class ThreadMailbox:
    """Pickled messages over an MPI communicator that nothing else uses.

    Only one thread of each rank may call it.
    """

    def __init__(self, communicator: Any):
        self._mpi = communicator
        self._sent: list[Any] = []
        self._last: Any = None
        self._arriving: list[tuple[int, Any]] = []

    def send(self, rank: int, *message: object) -> None:
        self._test_sends()
        # A synchronous send ends once it is received: `close` relies on that.
        self._sent.append(self._mpi.issend(message, rank))

    def send_unless_last_is_under_way(self, rank: int, *message: object) -> None:
        """Begin to send a message, unless the previous one is still under way.

        The previous one is that of this method.
        """
        if self._last is None or self._last.test()[0]:
            self._last = self._mpi.issend(message, rank)

    def receive(self) -> list[tuple[int, tuple]]:
        """Return the messages that have come, as pairs (rank of the sender, message)."""
        self._probe()
        messages = []
        arriving = []
        for source, request in self._arriving:
            done, message = request.test()
            if done:
                messages.append((source, message))
            else:
                arriving.append((source, request))
        self._arriving = arriving
        return messages

    def _probe(self) -> None:
        """Begin to receive all messages that are here."""
        status = mpi.library_here().Status()
        probes_in_vain = 0
        while probes_in_vain < _PROBES:
            message = self._mpi.improbe(status=status)
            if message:
                self._arriving.append((status.source, message.irecv()))
            else:
                probes_in_vain += 1

    def close(self) -> None:
        """Receive and drop all messages under way, then free the communicator. Collective.

        A send ends once its message is received, so nothing is under way after a barrier of ranks
        whose sends ended.
        """
        if self._last is not None:
            self._sent.append(self._last)
        while self._test_sends():
            self._drain()
        request = self._mpi.Ibarrier()
        while not request.Test():
            self._drain()
        self._mpi.Free()

    def _test_sends(self) -> bool:
        # Tests also let MPI move the sends: it has no thread of its own.
        self._sent = [request for request in self._sent if not request.test()[0]]
        return bool(self._sent)

    def _drain(self) -> None:
        self.receive()
        time.sleep(_BETWEEN_LOOKS)
