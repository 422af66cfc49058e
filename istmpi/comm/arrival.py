"""Whether the ranks that a launcher started all come: one that needs no MPI leaves without a word to the others.

`istmpi --version`, `--dry-run` and the like start no MPI, and must not: a process of the same rank may come after them
(``mpirun sh -c "istmpi runs; istmpi train"``), and a rank can start MPI once. So those that wait have to notice.
"""

import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from istmpi.comm.launcher import launched, on_this_host, starter

LONGEST_WAIT = 600.0
"""Seconds between the first rank and the last; imports from a busy file server take minutes."""
GONE_AFTER = 10.0
"""Seconds for which a rank of this host must be missing to count as gone: a launcher starts one after the other."""
_LOOK_EVERY = 2.0


@contextmanager
def expected() -> Iterator[None]:
    """End this process, and with it the job, where the other ranks do not come: one line, exit code 2."""
    if launched()[1] == 1:
        yield
        return
    here = threading.Event()
    threading.Thread(target=_watch, args=(here,), daemon=True).start()
    try:
        yield
    finally:
        here.set()


def _watch(here: threading.Event) -> None:
    rank, ranks = launched()
    begun = complete = time.monotonic()
    while not here.wait(_LOOK_EVERY):
        now = time.monotonic()
        present, wanted = on_this_host()
        if len(present) >= wanted:
            complete = now
        if now - complete > GONE_AFTER:
            what = f"{wanted} ranks were started on {socket.gethostname()}, and {wanted - len(present)} left again"
        elif now - begun > LONGEST_WAIT:
            what = f"{ranks} ranks were started, and not all of them came within {LONGEST_WAIT:g} s"
        else:
            continue
        claim = _claim_to_tell()
        if here.is_set():
            continue
        if claim:
            cure = "Start the same command on all ranks; --version, --dry-run and commands without MPI meet nobody."
            print(f"istmpi: rank {rank}: {what}. {cure}", file=sys.stderr, flush=True)
            while on_this_host()[0] != [rank] and time.monotonic() < now + 2 * GONE_AFTER:  # the claim ends with it
                time.sleep(0.1)
        os._exit(2)


def _claim_to_tell() -> socket.socket | None:
    """What one of the waiting ranks of this host can have at a time, until it ends; None where another one has it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0istmpi {starter()}")  # a name that is no file
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
    return claim
