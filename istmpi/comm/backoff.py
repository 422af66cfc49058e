"""The pauses of a rank that polls for what it waits for."""

import os
import time

from istmpi.comm.mpi import stand_in

YIELDING = 1e-3
"""Seconds in vain in which a wait gives its core away after every poll, but does not sleep."""
LONGEST_SLEEP = 5e-4
"""Seconds; a line of 1 Gbit/s carries 62 kB meanwhile, which its socket buffers hold."""
_SPIN_POLLS = 20
"""Polls in vain before it gives its core away at all."""


class Backoff:
    """Waits for the network with growing sleeps; MPI libraries spin, which takes cores from ranks that compute."""

    def __init__(self) -> None:
        self._idle = 0
        self._since = 0.0

    def wait_unless(self, progress: bool) -> None:
        """Sleep a little longer after every poll without progress; not at all after one that made some."""
        self._idle = 0 if progress else self._idle + 1
        simulated = stand_in()
        if self._idle and simulated:
            simulated.rest()
        elif self._idle > _SPIN_POLLS:
            now = time.perf_counter()
            if self._idle == _SPIN_POLLS + 1:
                self._since = now
            waited = now - self._since
            if waited < YIELDING:
                os.sched_yield()
            else:
                time.sleep(min(waited / 8, LONGEST_SLEEP))
