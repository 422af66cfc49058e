"""Ends the job where ranks do not come together while a loss is got over, when nobody can be asked where they are.

The roll-call needs a communicator of all ranks, and there is none then; a rank that is stopped meanwhile, or one whose
MPI stands, would have the others wait for ever.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from istmpi.comm import mpi
from istmpi.comm.communicator import Communicator
from istmpi.comm.leaving import end_stuck_job
from istmpi.comm.roll import deadline
from istmpi.comm.stacks import keep, stacks
from istmpi.errors import StuckError

_APART = 0.25
"""Seconds between two ranks, so that the first one says it."""
_BY_FORCE = 10.0
"""Seconds after which a rank ends that MPI did not end."""


@contextmanager
def within_deadlines(communicator: Communicator, patience: float, folder: Path) -> Iterator[None]:
    """A block that may take two deadlines of the roll-call (`comm.patience`); 0, or an MPI for one thread: any time.

    After that this rank's stacks are written to the run's ``folder``, and the job ends with StuckError's exit code.
    """
    seconds = 2 * deadline(patience, communicator.whereabouts.slowest_round)
    me = communicator.ranks[communicator.rank]

    def end() -> None:
        left = keep({me: stacks()}, folder)
        error = StuckError(
            f"the job ends: a rank was lost, and rank {me} has waited for {seconds:.0f} s for the others that are left "
            f"to go on together. {left} The same command with --resume auto goes on from the last checkpoint."
        )
        threading.Timer(_BY_FORCE, os._exit, (error.exit_code,)).start()
        end_stuck_job(error)

    timer = threading.Timer(seconds + _APART * me, end)
    timer.daemon = True
    if patience and mpi.threads_may_call():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
