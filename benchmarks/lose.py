"""istmpi as its console script runs it, but for ranks that are lost: ``lose.py FAULTS ARGUMENTS``.

FAULTS: ``RANK:PHASE:TIMES[:SECONDS],...``: that rank ends by SIGKILL so long after it has entered a phase of its clock
(compute, hop, pull, push, wait, evaluate, save, ...) for the so-manieth time; with ``PHASE+`` after it has left it.
With ``stop`` in place of seconds it is stopped for ever instead. The phase ``recovery`` is the move of what is left of
a network after a loss, ``pictures`` is what the first rank draws at the end.
"""

import os
import signal
import sys
import threading
from collections import Counter
from contextlib import contextmanager

from istmpi.cli.main import main
from istmpi.cli.progress import TrainingDisplay
from istmpi.comm import launched
from istmpi.record import Clock
from istmpi.training import remains, survival

seen = Counter()


def faults(text, rank):
    """Seconds until this rank's end, by phase and how often it came to it."""
    found = {}
    for one in filter(None, text.split(",")):
        which, phase, times, *seconds = one.split(":")
        if int(which) == rank:
            found[phase, int(times)] = "stop" if seconds == ["stop"] else float(*seconds)
    return found


FAULTS = faults(sys.argv.pop(1), launched()[0])


def come_to(phase):
    seen[phase] += 1
    seconds = FAULTS.get((phase, seen[phase]))
    if seconds == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif seconds:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    elif seconds is not None:
        os.kill(os.getpid(), signal.SIGKILL)


phase_of_clock, rebuilt, plots = Clock.__call__, remains.rebuilt, TrainingDisplay.plots


@contextmanager
def phase_or_end(self, phase):
    come_to(phase)
    with phase_of_clock(self, phase):
        yield
    come_to(f"{phase}+")


def rebuilt_or_not(*arguments):
    come_to("recovery")
    return rebuilt(*arguments)


def plots_or_not(self):
    come_to("pictures")
    plots(self)


TrainingDisplay.plots = plots_or_not
Clock.__call__, survival.rebuilt = phase_or_end, rebuilt_or_not
main()
