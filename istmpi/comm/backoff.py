"""How a rank polls for what it waits for."""

import os
import time
from collections.abc import Callable

from istmpi.comm.stand_in import rested

YIELDING = 1e-3
"""Seconds in vain in which a wait gives its core away after every poll, but does not sleep."""
LONGEST_SLEEP = 5e-4
"""Seconds; a line of 1 Gbit/s carries 62 kB meanwhile, which its socket buffers hold."""
LOOKS_APART = 0.05
"""Seconds between two looks at whether there is still something to wait for."""
_SPIN_POLLS = 20
"""So many polls in vain before it gives its core away at all."""


class Backoff:
    """Waits for the network with sleeps that grow while nothing happens, to an eighth of what was waited at most.

    MPI libraries wait by spinning: a rank that waits would take the core from one that shares it and still computes.
    ``look``: called now and then in a wait that is long; what it raises ends the wait.
    """

    def __init__(self, look: Callable[[], object] = lambda: None) -> None:
        self._idle = 0
        self._since = 0.0
        self._look, self._next_look = look, 0.0

    def wait_unless(self, progress: bool) -> None:
        """Sleep a little longer after every poll without progress; not at all after one that made some."""
        self._idle = 0 if progress else self._idle + 1
        if self._idle and rested():
            self._look()
            return
        if self._idle <= _SPIN_POLLS:
            return
        now = time.perf_counter()
        if self._idle == _SPIN_POLLS + 1:
            self._since, self._next_look = now, now + LOOKS_APART
        if now >= self._next_look:
            self._next_look = now + LOOKS_APART
            self._look()
        waited = now - self._since
        if waited < YIELDING:
            os.sched_yield()
        else:
            time.sleep(min(waited / 8, LONGEST_SLEEP))
