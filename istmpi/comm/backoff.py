"""The pauses of a rank while it polls MPI."""

import os
import time
from collections.abc import Callable

from istmpi.comm.mpi import stand_in

YIELDING = 1e-3
"""Seconds of unsuccessful polls before a rank sleeps. Until then it only yields its core after each
poll."""
LONGEST_SLEEP = 5e-4
"""The longest sleep in seconds. Socket buffers hold the 62 kB that a line of 1 Gbit/s carries in
that time."""
_SPIN_POLLS = 20
"""Unsuccessful polls before a rank first yields its core."""
in_waits: Callable[[], None] | None = None
"""A function that is called before every sleep, i.e. in waits of more than `YIELDING` seconds."""


class Backoff:
    """Pauses between polls, longer and longer.

    MPI libraries spin, which takes cores from ranks that compute.
    """

    def __init__(self) -> None:
        self._idle = 0
        self._since = 0.0

    def wait_unless(self, progress: bool) -> None:
        """Pause after a poll without ``progress``.

        The first such polls have no pause; then pauses get longer and longer.
        """
        if progress:
            self._idle = 0
        else:
            self._idle += 1
        simulated = stand_in()
        if self._idle and simulated:
            simulated.rest()  # virtual time: another simulated rank runs meanwhile
        elif self._idle > _SPIN_POLLS:
            now = time.perf_counter()
            if self._idle == _SPIN_POLLS + 1:
                self._since = now
            waited_seconds = now - self._since
            # decision 19: a wait inside MPI would spin on a core that another rank needs.
            if waited_seconds < YIELDING:
                os.sched_yield()
            else:
                if in_waits:
                    in_waits()
                # A sleep makes a wait longer by an eighth at most.
                time.sleep(min(waited_seconds / 8, LONGEST_SLEEP))
