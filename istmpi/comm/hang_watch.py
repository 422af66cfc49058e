"""Watches ranks that wait for others.

A rank that does not come is named, and a job that is stuck is ended. A thread on every rank looks
at the waits of this rank and at its launcher. Where threads may call MPI, it also takes part in
roll calls (`istmpi.comm.roll_call`).
"""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from weakref import WeakMethod

from istmpi.comm import backoff, mpi
from istmpi.comm.arrival import LauncherWatch, watched
from istmpi.comm.communicator import Communicator
from istmpi.comm.leaving import before_finalize
from istmpi.comm.members import find_members, threads_may_call_everywhere
from istmpi.comm.roll_call import RollCall, WatchedJob
from istmpi.comm.thread_mailbox import ThreadMailbox
from istmpi.foreign import one_line

_TICK = 0.25
"""Seconds between two looks of the watch."""
_SHORT_TICK = 0.05
"""Seconds between two looks while a roll call is under way."""

CURE = "Continue from the last checkpoint with --resume auto."
WHILE_LOADING = "Training had not begun: run the same command again."


def print_line(text: str) -> None:
    """Print a message for people, on any rank."""
    print(f"istmpi: {one_line(text)}", file=sys.stderr, flush=True)


def _do_nothing(error: BaseException | None) -> None:
    """Let a watch end without further ado."""


class HangWatch:
    """Watches this rank's waits and launcher, until the watch is closed. Creation is collective.

    ``patience``: the shortest deadline in seconds; with 0 no rank is reported. ``tell`` prints
    messages for people, on any rank. ``folder`` gets stack traces. ``cure``: the advice after a
    stuck job. ``before_close`` gets the error of all ranks, if any, when the watch ends. If threads
    may not call MPI, only the launcher is watched.
    """

    def __init__(
        self,
        communicator: Communicator,
        patience: float,
        folder: Path,
        tell: Callable[[str], None] = print_line,
        cure: str = CURE,
        before_close: Callable[[BaseException | None], None] = _do_nothing,
    ):
        self._communicator = communicator
        self.before_close = before_close
        self._where = communicator.whereabouts
        self._where.restart()
        self._job = WatchedJob(patience=patience, folder=folder, tell=tell, cure=cure)
        self._launcher = LauncherWatch()
        members = find_members(communicator)
        self._me = members[communicator.rank]
        self._neighbours = [
            member for member in members if member != self._me and member.host == self._me.host
        ]
        self._closing = threading.Event()
        self._roll_call: RollCall | None = None
        if _may_call_rolls(communicator, patience):
            mailbox = ThreadMailbox(communicator.duplicate().mpi)
            self._roll_call = RollCall(
                job=self._job,
                members=members,
                rank=communicator.rank,
                where=self._where,
                mailbox=mailbox,
                closing=self._closing,
            )
        self._thread = threading.Thread(target=self._serve, name="roll-call", daemon=True)
        if self._roll_call or self._launcher.there:
            self._thread.start()
            # A program that leaves its loop by an exception does not close its watch.
            before_finalize.append(WeakMethod(self.stop_looking))
        watched.set()

    def go_on(self, tell: Callable[[str], None] = print_line) -> None:
        """Note that all ranks have loaded the program: a job that is stuck from now on can continue
        from its checkpoints. ``tell`` is as for the constructor."""
        self._job.tell = tell
        self._job.cure = CURE

    def follow_run(
        self, folder: Path, wished: Callable[[], str], tell: Callable[[str], None]
    ) -> None:
        """Watch a run in its folder, as `go_on` does with ``tell``. The function ``wished`` returns
        the reason of a requested stop or else an empty text."""
        self.go_on(tell)
        self._job.folder = folder
        self._job.wished = wished

    def __enter__(self) -> "HangWatch":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        if error is None or getattr(error, "everywhere", False):
            self.close(error)
        else:
            # The other ranks may never come to a barrier.
            self.stop_looking()

    def close(self, error: BaseException | None = None) -> None:
        """End the watch on all ranks, which have the same ``error`` if any."""
        if self._closing.is_set():
            return
        self.before_close(error)
        # A rank whose thread has ended answers no roll call, so all threads end together.
        self._communicator.barrier()
        self._stop(None)
        if self._roll_call:
            self._roll_call.close()

    def stop_looking(self) -> None:
        """End this rank's part of the watch, which then calls MPI no more."""
        self._stop(1.0)

    def _stop(self, seconds: float | None) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _serve(self) -> None:
        while not self._closing.wait(self._tick()):
            try:
                self._look(time.monotonic())
            except OSError:
                # The system has no file descriptor left, or no memory: the next look may succeed.
                continue
            except Exception as error:
                if not mpi.lost_connection(error):
                    raise
                return  # a rank is gone, and the ranks that talk with it report that

    def _tick(self) -> float:
        if self._roll_call and self._roll_call.busy:
            return _SHORT_TICK
        return _TICK

    def _look(self, now: float) -> None:
        slept = self._where.watch(now)
        if slept and self._roll_call:
            self._roll_call.forget()
        self._launcher.look(self._me, self._neighbours, self._job.cure)
        if self._roll_call:
            self._roll_call.look(now)
            answer = backoff.in_waits
            # A member of a replica group waits in torch, which polls no MPI.
            if answer and self._where.waiting:
                answer()


def _may_call_rolls(communicator: Communicator, patience: float) -> bool:
    """Return True if ranks are to be reported, and threads may call MPI on all of them."""
    if communicator.size == 1 or patience <= 0:
        return False
    return threads_may_call_everywhere(communicator)
