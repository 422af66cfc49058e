"""Times work of all ranks at once."""

import time
from collections.abc import Callable

import numpy as np

from istmpi.comm import Communicator

SECONDS = 0.3  # in which a piece of work is repeated
LONG_SECONDS = 1.0  # of work that is done once
LEAST_REPETITIONS = 3
MOST_REPETITIONS = 25
TURN_SECONDS = 0.04  # about the time of the calls that are timed together
MOST_INNER = 1000
LEAST_INNER = 4
"""Ranks leave a barrier up to a message's latency apart, which one call would count as its own."""
NOISE = 0.1
"""The least fraction of a time that is left after known parts are subtracted; a fit needs positive
times."""


def time_slowest(communicator: Communicator, work: Callable[[], object]) -> float:
    """Return the seconds of ``work()`` on the slowest rank. Collective.

    They are those of the first call if it takes over `LONG_SECONDS`, otherwise a median over at
    least `LEAST_REPETITIONS`: calls over a long distance differ by the packets that are sent again.
    """
    once = _slowest(communicator, work, 1)
    if once > LONG_SECONDS:
        return once
    # Several calls are timed together, because a barrier and a clock cost time, too.
    inner = min(max(int(TURN_SECONDS / once), LEAST_INNER), MOST_INNER)
    if once > SECONDS:
        inner = 1
    times: list[float] = []
    while len(times) < LEAST_REPETITIONS or (
        len(times) < MOST_REPETITIONS and sum(times) * inner < SECONDS
    ):
        times.append(_slowest(communicator, work, inner))
    return float(np.median(times))


def _slowest(communicator: Communicator, work: Callable[[], object], times: int) -> float:
    # All ranks work at once, as in training: they share memory and network.
    communicator.barrier()
    start = time.perf_counter()
    for _ in range(times):
        work()
    return max(communicator.allgather((time.perf_counter() - start) / times))
