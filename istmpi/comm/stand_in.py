"""Whether this thread is a rank of a simulated cluster: what stands there in MPI's place, and whose time counts.

All others ask here and need not know: `istmpi.comm.mpi.library_here` for MPI, `now` and `rested` for time.
"""

import threading
import time
from typing import Any

_of_this_thread = threading.local()


def stand_in() -> Any:
    """What stands in for MPI in this thread (`istmpi.simulated.library`); None where MPI is real."""
    return getattr(_of_this_thread, "library", None)


def stand_in_here(library: Any) -> None:
    """Make this thread a simulated rank, or with None an ordinary one again."""
    _of_this_thread.library = library


def now() -> float:
    """Seconds of a clock that never goes back: for deadlines and what ranks wait; virtual ones in a simulation."""
    simulated = stand_in()
    return time.monotonic() if simulated is None else simulated.now()


def rested() -> bool:
    """Whether this is a simulated rank, which has then rested until something came to it, or somewhat longer."""
    simulated = stand_in()
    if simulated is None:
        return False
    simulated.rest()
    return True
