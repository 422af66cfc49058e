"""Several ranks in one process, each a thread: the parts of a Communicator that the engine's transfers use."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from patience import patient

from istmpi.comm import Traffic


class SimulatedCommunicator:
    """One rank's view; `on_ranks` makes them."""

    def __init__(self, rank, size, barrier, board):
        self.rank, self.size = rank, size
        self.traffic = Traffic()
        self.largest_message = 0
        self._barrier, self._board = barrier, board

    def scratch(self, name, nbytes):
        return np.full(nbytes, 0xAB, dtype=np.uint8)

    def alltoallv(self, send, receive):
        buffer, counts, starts = receive
        for (theirs, its_counts, its_starts), count, start in zip(self.allgather(send), counts, starts):
            assert its_counts[self.rank] == count, "sender and receiver planned different messages"
            buffer[start : start + count] = theirs[its_starts[self.rank] :][:count]
        self.traffic.add(sum(send[1]) - send[1][self.rank])
        self.largest_message = max(self.largest_message, *send[1])
        self._barrier.wait()

    def duplicate(self):
        return self

    def allgather(self, value):
        self._board[self.rank] = value
        self._barrier.wait()
        values = list(self._board)
        self._barrier.wait()
        return values

    def allreduce_max(self, value):
        return max(self.allgather(value))


def on_ranks(ranks, work):
    """``[work(communicator) for each rank]``, all at the same time."""
    barrier, board = threading.Barrier(ranks, timeout=patient(60)), [None] * ranks

    def guarded(rank):
        try:
            return work(SimulatedCommunicator(rank, ranks, barrier, board))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        futures = [pool.submit(guarded, rank) for rank in range(ranks)]
    failures = [error for error in (future.exception() for future in futures) if error]
    for error in failures:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
