"""The end of a job: orderly if all ranks know of it, by force if a rank fails for which others may
wait."""

import atexit
import builtins
import os
import sys
import time
from functools import partial
from types import TracebackType
from typing import NoReturn
from weakref import WeakMethod

from istmpi.comm import backoff, mpi
from istmpi.comm.communicator import Communicator
from istmpi.comm.whereabouts import Whereabouts
from istmpi.errors import IstmpiError, StuckError
from istmpi.foreign import one_line

PASSED_ON = 0.5
"""Seconds in which a launcher prints a last line. MPICH's launcher drops unread output when a job
aborts."""
GRACE = 3.0
"""Seconds that a rank at its script's end waits for the others, before it ends them or asks them to
answer."""
_LEFT, _WAITS = 1, 2
"""Tags: a rank at its script's end sends the calls that it reached; ranks that wait for it in other
calls answer."""
_exit_code = 0
_message = ""
"""The line of the IstmpiError that ends this rank. If all ranks end, rank 0 prints each different
line once."""
_worlds: list[Whereabouts] = []
_failed = False
"""True if an exception ends this rank."""
at_the_end: list[WeakMethod] = []
"""Methods to call when this rank's script ends without an exception, also by sys.exit."""


def final_barrier() -> None:
    """Wait for all ranks, if MPI is up: a launcher ends the others at once when one rank exits with
    an error."""
    MPI = mpi.if_up()
    if MPI:
        MPI.COMM_WORLD.Barrier()


def abort_at_exit(code: int) -> None:
    if mpi.if_up():
        from mpi4py.run import set_abort_status

        set_abort_status(code)


def end_stuck_job(error: StuckError) -> None:
    print(f"istmpi: {one_line(error)}", file=sys.stderr, flush=True)
    time.sleep(PASSED_ON)
    mpi.if_up().COMM_WORLD.Abort(error.exit_code)


def end_with_this_script(communicator: Communicator) -> None:
    """Let an exception or a nonzero sys.exit on one rank end all ranks of a user's own program from
    now on.

    If all ranks end within `GRACE` seconds, each rank keeps its exit code. An IstmpiError gives the
    code of the command line, and its line is printed once. A rank that ends without an error ends
    ranks that wait for it, with code 1.
    """
    _worlds.append(communicator.whereabouts)
    if len(_worlds) > 1:
        return
    excepthook, leave = sys.excepthook, sys.exit

    def failed(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        global _failed
        _failed = True
        if isinstance(error, IstmpiError):
            _note(error.exit_code, f"istmpi: {one_line(error)}")
            return
        _note(130 if issubclass(kind, KeyboardInterrupt) else 1)
        excepthook(kind, error, trace)

    def exit(status: object = None, /) -> NoReturn:
        _note(status if isinstance(status, int) else int(status is not None))
        leave(status)

    sys.excepthook = failed
    sys.exit = builtins.exit = builtins.quit = exit
    everyone = communicator.duplicate()
    backoff.in_waits = partial(_answer, everyone, {})
    atexit.register(_end, everyone)


def _note(code: int, message: str = "") -> None:
    global _exit_code, _message
    _exit_code, _message = code, message


def _answer(everyone: Communicator, left: dict[int, list[dict[str, int]]]) -> None:
    while message := everyone.mpi.improbe(tag=_LEFT):
        left |= message.recv()
    for rank, reached in sorted(left.items()):
        for where, arrivals in zip(_worlds, reached):
            for wait in list(where.waiting.values()):
                if (
                    rank in wait.ranks
                    and not wait.for_itself
                    and arrivals.get(wait.group, 0) < wait.number
                ):
                    text = f"rank {rank} ended its program while rank {everyone.rank} waits for it in {wait.call}."
                    everyone.mpi.send(
                        f"{text} End the program on all ranks, or raise an error.", rank, _WAITS
                    )
                    return


def _end(everyone: Communicator) -> None:
    for reference in () if _failed else at_the_end:
        if call := reference():
            call()
    if not mpi.if_up():
        return
    backoff.in_waits = None
    all_here, pause, sent = everyone.mpi.Ibarrier(), backoff.Backoff(), []
    deadline = time.monotonic() + GRACE
    while not all_here.Test():
        if time.monotonic() > deadline:
            if _exit_code:
                if _message:
                    print(_message, file=sys.stderr)
                    time.sleep(PASSED_ON)
                sys.stdout.flush()
                sys.stderr.flush()
                abort_at_exit(_exit_code)
                return
            reached = {everyone.rank: [where.arrivals for where in _worlds]}
            sent = sent or [everyone.mpi.isend(reached, rank, _LEFT) for rank in everyone.ranks]
            if answer := everyone.mpi.improbe(tag=_WAITS):
                _note(1, f"istmpi: {answer.recv()}")
        pause.wait_unless(False)
    for message in dict.fromkeys(filter(None, everyone.mpi.gather(_message) or ())):
        print(message, file=sys.stderr)
    if _message and _exit_code > 1:  # Python itself ends with 1 after any exception
        sys.stdout.flush()
        sys.stderr.flush()
        mpi.if_up().Finalize()
        os._exit(_exit_code)
