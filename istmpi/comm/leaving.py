"""The end of a job: orderly if all ranks know of it, by force if one fails while others may wait for it."""

import atexit
import builtins
import os
import sys
import time
from functools import partial
from types import TracebackType
from typing import NoReturn

from istmpi.comm import backoff, mpi
from istmpi.comm.communicator import Communicator
from istmpi.comm.whereabouts import Whereabouts
from istmpi.errors import IstmpiError, StuckError

PASSED_ON = 0.5
"""Seconds in which a launcher prints a last line. MPICH's drops unread output when a job aborts."""
GRACE = 3.0
"""Seconds that a rank waits at the end of its script for the others, before it ends them or asks them to answer."""
_LEFT, _WAITS = 1, 2
"""Tags: the calls that a rank at its script's end has reached; the answer of a rank that waits for it in another."""
_exit_code = 0
_message = ""
"""The line of the IstmpiError that ends this rank. If all ranks end, rank 0 prints each different line once."""
_worlds: list[Whereabouts] = []
_left: dict[int, list[dict[str, int]]] = {}
"""Ranks at the end of their scripts, with the numbers of calls that they reached in each of `_worlds`."""


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
    its line is printed once. A rank that ends in another way ends the others if they wait for it.
    """
    _worlds.append(communicator.whereabouts)
    if len(_worlds) > 1:
        return
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
    backoff.in_long_waits = partial(_answer, everyone)
    atexit.register(_end, everyone)


def _note(code: int, message: str = "") -> None:
    global _exit_code, _message
    _exit_code, _message = code, message


def _answer(everyone: Communicator) -> None:
    """Answer a rank at the end of its script if this rank waits for it in a call that it has not reached."""
    status = mpi.library_here().Status()
    while message := everyone.mpi.improbe(tag=_LEFT, status=status):
        _left[status.source] = message.recv()
    for rank, worlds in sorted(_left.items()):
        for where, arrivals in zip(_worlds, worlds):
            for wait in list(where.waiting.values()):
                if rank in wait.ranks and not wait.for_itself and arrivals.get(wait.group, 0) < wait.number:
                    everyone.mpi.send(wait.call, rank, _WAITS)
                    return


def _end(everyone: Communicator) -> None:
    if not mpi.if_up():
        return
    backoff.in_long_waits = None
    all_here, pause, asked = everyone.mpi.Ibarrier(), backoff.Backoff(), []
    others = [rank for rank in everyone.ranks if rank != everyone.rank]
    deadline, status = time.monotonic() + GRACE, mpi.library_here().Status()
    while not all_here.Test():
        late = time.monotonic() > deadline
        if _exit_code and late:
            if _message:
                print(_message, file=sys.stderr)
                time.sleep(PASSED_ON)
            sys.stdout.flush()
            sys.stderr.flush()
            abort_at_exit(_exit_code)
            return
        if late and not asked:
            reached = [dict(where.arrivals) for where in _worlds]
            asked = [everyone.mpi.isend(reached, rank, _LEFT) for rank in others]
        if answer := everyone.mpi.improbe(tag=_WAITS, status=status):
            text = f"rank {everyone.rank} ended its program while rank {status.source} waits for it in {answer.recv()}."
            _note(1, f"istmpi: {text} End the program on all ranks, or raise an error.")
        pause.wait_unless(False)
    reports = everyone.mpi.allgather((_message, bool(asked)))
    for rank in others:
        if reports[rank][1] and rank not in _left:
            everyone.mpi.recv(source=rank, tag=_LEFT)
    for request in asked:
        request.wait()
    for message in dict.fromkeys(message for message, _ in reports if message and everyone.rank == 0):
        print(message, file=sys.stderr)
    if _message and _exit_code > 1:  # Python itself ends with 1 after any exception
        sys.stdout.flush()
        sys.stderr.flush()
        mpi.if_up().Finalize()
        os._exit(_exit_code)
