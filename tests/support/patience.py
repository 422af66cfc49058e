"""How long tests wait: their limits are for a machine that is idle, and longer by as much as this one is busy."""

import os
import time
from pathlib import Path

AT_LEAST = float(os.environ.get("ISTMPI_TEST_PATIENCE", 1))
"""For machines that are slow without being busy."""


def patience():
    """How many times as long as on an idle machine things may take at this moment."""
    running = 1.0
    if Path("/proc/loadavg").exists():
        minute, _, _, now, _ = Path("/proc/loadavg").read_text().split()
        running = max(float(minute), float(now.partition("/")[0]))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(AT_LEAST, running / cores, 1.0)


def patient(seconds):
    """A time limit as it is at this moment."""
    return seconds * patience()


class Limit:
    """A time limit that grows if the machine becomes busy meanwhile."""

    def __init__(self, seconds):
        self.seconds = seconds
        self._begun = time.monotonic()
        self._patience = 1.0

    @property
    def left(self):
        """Seconds; 0 once it is over. The busiest moment that was looked at counts."""
        self._patience = max(self._patience, patience())
        return max(self._begun + self.seconds * self._patience - time.monotonic(), 0.0)
