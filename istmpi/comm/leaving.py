"""The end of a job: orderly if all ranks know of it, by force if one fails while others may wait for it."""

import atexit
import builtins
import os
import sys
import time
from types import TracebackType
from typing import NoReturn

from istmpi.comm import mpi
from istmpi.comm.backoff import Backoff
from istmpi.comm.communicator import Communicator
from istmpi.errors import IstmpiError, StuckError

PASSED_ON = 0.5
"""Seconds in which a launcher prints a last line. MPICH's drops unread output when a job aborts."""
GRACE = 3.0
"""Seconds that a failed rank waits at the end of its script for the others, which may have failed as well."""
_exit_code = 0
_message = ""
"""The line of the IstmpiError that ends this rank. If all ranks end, rank 0 prints each different line once."""
_installed = False


def final_barrier() -> None:
    """Wait for all ranks, if MPI is up: a launcher ends the others at once when one rank exits with an error."""
    MPI = mpi.if_up()
    if MPI:
        MPI.COMM_WORLD.Barrier()


def abort_at_exit(code: int) -> None:
    if mpi.if_up():
        from mpi4py.run import set_abort_status

        set_abort_status(code)


def end_stuck_job(error: StuckError) -> None:
    print(f"istmpi: {error}", file=sys.stderr, flush=True)
    time.sleep(PASSED_ON)
    mpi.if_up().COMM_WORLD.Abort(error.exit_code)


def end_with_this_script(communicator: Communicator) -> None:
    """Let an exception or a nonzero sys.exit on one rank end all ranks of a user's own program from now on.

    If all end within `GRACE` seconds, each keeps its exit code. An IstmpiError gives the command line's code, and
    its line is printed once. A SystemExit that the program raises itself is not noticed.
    """
    global _installed
    if _installed:
        return
    _installed = True
    excepthook, leave = sys.excepthook, sys.exit

    def failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, IstmpiError):
            _note(error.exit_code, f"istmpi: {error}")
            return
        _note(130 if issubclass(kind, KeyboardInterrupt) else 1)
        excepthook(kind, error, trace)

    def exit(status: object = None, /) -> NoReturn:
        _note(status if isinstance(status, int) else int(status is not None))
        leave(status)

    sys.excepthook = failed
    sys.exit = builtins.exit = builtins.quit = exit
    everyone = communicator.duplicate()
    atexit.register(_end, everyone)


def _note(code: int, message: str = "") -> None:
    global _exit_code, _message
    _exit_code, _message = code, message


def _end(everyone: Communicator) -> None:
    if not mpi.if_up():
        return
    all_here, backoff = everyone.mpi.Ibarrier(), Backoff()
    deadline = time.monotonic() + GRACE
    while not all_here.Test():
        if _exit_code and time.monotonic() > deadline:
            if _message:
                print(_message, file=sys.stderr)
                time.sleep(PASSED_ON)
            sys.stdout.flush()
            sys.stderr.flush()
            abort_at_exit(_exit_code)
            return
        backoff.wait_unless(False)
    for message in dict.fromkeys(filter(None, everyone.mpi.gather(_message) or ())):
        print(message, file=sys.stderr)
    if _message and _exit_code > 1:  # Python itself ends with 1 after any exception
        sys.stdout.flush()
        sys.stderr.flush()
        mpi.if_up().Finalize()
        os._exit(_exit_code)
