"""The end of a job: orderly if all ranks know of it, otherwise by force, for others may wait."""

import atexit
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any
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
_LEFT = 1
"""The tag of the calls that a rank at its script's end has reached."""
_WAITS = 2
"""The tag of the answers: from ranks that wait for that rank in other calls."""
_INTERRUPTED = 130
"""The exit code of a process that Ctrl-C ended, as shells report it."""
_exit_code = 0
_message = ""
"""The line of the IstmpiError that ends this rank. If all ranks end, rank 0 prints each different
line once."""
_worlds: list[Whereabouts] = []
_failed = False
"""True if an exception ends this rank."""
_grace = GRACE
"""`GRACE`, or ten times as long if the leader of a replica group reports the error of this rank."""
at_the_end: list[WeakMethod] = []
"""Methods to call when this rank's script ends without an exception, also by sys.exit."""
before_finalize: list[WeakMethod] = []
"""Methods to call when all ranks' scripts have ended, before MPI ends. They end threads that call
MPI."""


def final_barrier() -> None:
    """Wait for all ranks, if MPI is up.

    A launcher ends the others at once when one rank ends with an error.
    """
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
    """Let a failure of one rank end all ranks of a user's own program from now on.

    If all ranks end within `GRACE` seconds, each rank keeps its exit code. An IstmpiError gives the
    code of the command line, and its line is printed once. A rank that ends without an exception,
    for example by sys.exit, ends ranks that wait for it, with code 1.
    """
    _worlds.append(communicator.whereabouts)
    if len(_worlds) > 1:
        return
    excepthook = sys.excepthook

    def failed(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        global _failed, _grace
        _failed = True
        if isinstance(error, IstmpiError):
            if error.heard:
                _grace = 10 * GRACE
            _note(error.exit_code, f"istmpi: {one_line(error)}")
            return
        _note(_INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1)
        excepthook(kind, error, trace)

    sys.excepthook = failed
    everyone = communicator.duplicate()
    backoff.in_waits = partial(_answer, everyone, {})
    atexit.register(_end, everyone)


def _note(code: int, message: str = "") -> None:
    global _exit_code, _message
    _exit_code = code
    _message = message


def _answer(everyone: Communicator, left: dict[int, list[dict[str, int]]]) -> None:
    """Tell a rank that left its program that this rank waits for it.

    ``left``: the calls, by world and group, that each such rank has reached, as far as is known.
    """
    message = everyone.mpi.improbe(tag=_LEFT)
    while message:
        left |= message.recv()
        message = everyone.mpi.improbe(tag=_LEFT)
    for rank, reached in sorted(left.items()):
        for where, arrivals in zip(_worlds, reached):
            for wait in list(where.waiting.values()):
                if rank not in wait.ranks or wait.for_itself:
                    continue
                if arrivals.get(wait.group, 0) < wait.number:
                    text = (
                        f"{where.name(rank)} ended its program while "
                        f"{where.name(everyone.rank)} waits for it in {wait.call}. End the "
                        "program on all ranks, or raise an error."
                    )
                    everyone.mpi.send(text, rank, _WAITS)
                    return


def _end(everyone: Communicator) -> None:
    """End this rank together with all others, or end the others by force."""
    if not _failed:
        _call_all(at_the_end)
    if not mpi.if_up():
        return
    backoff.in_waits = None
    questions: list[Any] = []  # to the end of this function, for MPI may still read them
    if not _wait_for_others(everyone, questions):
        _end_others()
        return
    messages = everyone.mpi.gather(_message) or ()
    for message in dict.fromkeys(filter(None, messages)):  # each different line once
        print(message, file=sys.stderr)
    _call_all(before_finalize)
    if _message and _exit_code > 1:  # Python itself ends with 1 after any exception
        sys.stdout.flush()
        sys.stderr.flush()
        mpi.if_up().Finalize()
        os._exit(_exit_code)


def _call_all(references: Sequence[WeakMethod]) -> None:
    for reference in references:
        call = reference()
        if call:
            call()


def _wait_for_others(everyone: Communicator, questions: list[Any]) -> bool:
    """Return True once all ranks have ended their scripts; False if this rank must end them.

    After `_grace` seconds, a rank that failed ends the others. Any other rank asks whether they
    wait for it; ``questions`` gets the requests of these messages.
    """
    all_here = everyone.mpi.Ibarrier()
    pause = backoff.Backoff()
    deadline = time.monotonic() + _grace
    while not all_here.Test():
        if time.monotonic() > deadline:
            if _exit_code:
                return False
            if not questions:
                reached = {everyone.rank: [where.arrivals for where in _worlds]}
                for rank in everyone.ranks:
                    questions.append(everyone.mpi.isend(reached, rank, _LEFT))
            answer = everyone.mpi.improbe(tag=_WAITS)
            if answer:
                _note(1, f"istmpi: {answer.recv()}")
        pause.wait_unless(False)
    return True


def _end_others() -> None:
    if _message:
        print(_message, file=sys.stderr)
        time.sleep(PASSED_ON)
    sys.stdout.flush()
    sys.stderr.flush()
    abort_at_exit(_exit_code)
