"""Ends the job where ranks do not come together while a loss is got over, when nobody can be asked where they are.

The roll-call needs a communicator of all ranks, and there is none then; a rank that is stopped meanwhile, or one whose
MPI stands, would have the others wait for ever.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from istmpi.comm import mpi
from istmpi.comm.communicator import Communicator
from istmpi.comm.io_count import counted_bytes
from istmpi.comm.leaving import end_stuck_job
from istmpi.comm.roll import deadline
from istmpi.comm.stacks import keep, stacks
from istmpi.errors import StuckError

_APART = 0.25
"""Seconds between two ranks, so that the first one says it."""
_LOOK_EVERY = 0.25
_BY_FORCE = 10.0
"""Seconds after which a rank ends that MPI did not end."""


@contextmanager
def within_deadlines(communicator: Communicator, patience: float, folder: Path) -> Iterator[None]:
    """A block that may do nothing for two deadlines of the roll-call; ``patience``: `comm.patience`, 0 for any time.

    A rank that sends or receives gets on. After that this rank's stacks are written to the run's ``folder``, and the
    job ends with StuckError's exit code. Without an MPI that threads may call there is no end.
    """
    limit = 2 * deadline(patience, communicator.whereabouts.slowest_round)
    me = communicator.ranks[communicator.rank]
    over = threading.Event()

    def watch() -> None:
        count = counted_bytes(0)
        moved = time.monotonic()
        while not over.wait(_LOOK_EVERY):
            count, before = counted_bytes(count), count
            if count != before:
                moved = time.monotonic()
            elif time.monotonic() - moved > limit + _APART * me:
                end()
                return

    def end() -> None:
        force = threading.Timer(_BY_FORCE, os._exit, (StuckError.exit_code,))
        force.daemon = True
        force.start()
        left = keep({me: stacks()}, folder)
        end_stuck_job(
            StuckError(
                f"the job ends: a rank was lost, and rank {me} has waited for {limit:.0f} s for the others that are "
                f"left to go on together. {left} The same command with --resume auto goes on from the last checkpoint."
            )
        )

    if patience and mpi.threads_may_call():
        threading.Thread(target=watch, name="overdue", daemon=True).start()
    try:
        yield
    finally:
        over.set()
