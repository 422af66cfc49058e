"""Notices, from /proc, ranks that were started but never join the job, and a launcher that is gone.

A rank that runs `istmpi --version`, or another command that does not start MPI, leaves without a
message. Waiting ranks must notice that.
"""

import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache

from istmpi.comm.hang_report import Member
from istmpi.comm.launcher import (
    connection_is_closed,
    find_launcher,
    find_stopped_ranks,
    on_this_host,
    process_facts,
    rank_variable,
    read_launcher,
)
from istmpi.errors import StuckError

LONGEST_WAIT = 600.0
"""Seconds that the first rank waits for the last one. Imports from a busy file server take
minutes."""
GONE_AFTER = 10.0
"""Seconds after which a missing rank of this host counts as gone. A launcher starts ranks one after
another."""
_LOOK_EVERY = 2.0
watched = threading.Event()
"""An event, set when a hang watch begins; it ends the thread of `expect_ranks`."""


@contextmanager
def expect_ranks() -> Iterator[None]:
    """End the job with exit code 2 if other ranks do not come during the block.

    It ends with this process. Until a hang watch begins (`watched`), stopped ranks of this host are
    named. A rank that stays stopped ends the job with exit code 76.
    """
    watch_launcher()
    if read_launcher()[1] == 1:
        yield
        return
    all_came = threading.Event()
    threading.Thread(target=_watch, args=(all_came,), daemon=True).start()
    try:
        yield
    finally:
        all_came.set()


def _watch(all_came: threading.Event) -> None:
    """Name stopped ranks, and end this process if a rank of the job does not come."""
    rank, ranks = read_launcher()
    began = complete_at = time.monotonic()
    stopped = _StoppedRanks(rank)
    while not watched.wait(_LOOK_EVERY):
        now = time.monotonic()
        stopped.look(now)
        if all_came.is_set():
            continue
        present, started = on_this_host()
        # Until now, no rank of this host is missing.
        if len(present) >= started:
            complete_at = now
        if now - complete_at > GONE_AFTER:
            left = started - len(present)
            problem = f"{started} ranks were started on {socket.gethostname()}, but {left} left"
        elif now - began > LONGEST_WAIT:
            problem = (
                f"{ranks} ranks were started, but some did not arrive within {LONGEST_WAIT:g} s"
            )
        else:
            continue
        claim = _claim_to_tell()
        if all_came.is_set():  # the last rank came at this moment
            continue
        if claim:
            _tell(rank, problem, until=now + 2 * GONE_AFTER)
        os._exit(2)


def _tell(rank: int, problem: str, until: float) -> None:
    """Print why the ranks of this host end, and wait until the others have ended."""
    cure = (
        "Start the same command on all ranks; --version, --dry-run and commands without MPI join "
        "no job."
    )
    print(f"istmpi: rank {rank}: {problem}. {cure}", file=sys.stderr, flush=True)
    # The end of this process frees the claim: another rank of the host would print once more.
    while on_this_host()[0] != [rank] and time.monotonic() < until:
        time.sleep(0.1)


class _StoppedRanks:
    """Stopped ranks of this host: they are named once, and end the job if they stay stopped."""

    def __init__(self, rank: int):
        self._rank = rank
        self._since: dict[tuple[int, int], float] = {}
        """The time when each stopped rank, a pair (rank, process), was first seen."""
        self._named: set[tuple[int, int]] = set()

    def look(self, now: float) -> None:
        """Name ranks that are stopped for `GONE_AFTER` seconds; end this process after
        `LONGEST_WAIT`."""
        stopped, first = find_stopped_ranks()
        # A rank that runs again is forgotten, and counts anew if it stops again.
        self._since = {key: self._since.get(key, now) for key in stopped.items()}
        late = {key for key, since in self._since.items() if now - since > GONE_AFTER}
        if first == self._rank:
            for rank, process in sorted(late - self._named):
                _name(rank, process)
        self._named |= late
        if any(now - self._since[key] > LONGEST_WAIT for key in late):
            os._exit(StuckError.exit_code)


def _name(rank: int, process: int) -> None:
    print(
        f"istmpi: waiting for rank {rank} on {socket.gethostname()} (process {process}): its "
        f"process is stopped (kill -CONT {process} resumes it). The job ends after "
        f"{LONGEST_WAIT:g} s if nothing changes.",
        file=sys.stderr,
        flush=True,
    )


def _claim_to_tell() -> socket.socket | None:
    """Claim the right to print for this host's waiting ranks, until this process ends.

    Return None if another process has it.
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0istmpi {launcher_at_start()}")  # a name that is no file
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
    return claim


class LauncherWatch:
    """Ends this process once its launcher is gone, which MPI does not do."""

    def __init__(self) -> None:
        self._launcher = launcher_at_start()
        self._missed = False

    @property
    def there(self) -> bool:
        return self._launcher is not None

    def look(self, me: Member, neighbours: Sequence[Member], cure: str) -> None:
        """End this process if the launcher is gone. The lowest rank of the host prints why."""
        if self.gone():
            if not any(member.rank < me.rank for member in neighbours):
                self.tell(me.rank, cure)
            os._exit(StuckError.exit_code)

    def gone(self) -> bool:
        """Return True if the launcher was gone at two looks in a row.

        A launcher that ends the job gets a moment to end this rank.
        """
        missed_before = self._missed
        if self._launcher is None:
            self._missed = connection_is_closed()
        else:
            process, started = self._launcher
            # Numbers of processes are reused: another start time means another process.
            _, started_now = process_facts(process)
            self._missed = started_now != started
        return missed_before and self._missed

    def tell(self, rank: int, cure: str) -> None:
        launcher = f"the launcher of rank {rank} on {socket.gethostname()}"
        if self._launcher:
            process, _ = self._launcher
            launcher += f" (process {process})"
        text = f"istmpi: {launcher} is gone; the ranks of this host end. {cure}"
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


@cache
def launcher_at_start() -> tuple[int, str] | None:
    """Return the result of the first call of `find_launcher`.

    A process that has lost its launcher has another parent.
    """
    return find_launcher()


@cache
def watch_launcher() -> None:
    """Watch this rank's launcher from the first call on, until a hang watch begins (`watched`).

    MPI does not notice the launcher's end while it starts: ranks then wait for ever.
    """
    if rank_variable():
        launcher_at_start()
        threading.Thread(target=_watch_launcher, name="launcher", daemon=True).start()


def _watch_launcher() -> None:
    launcher = LauncherWatch()
    while not watched.wait(_LOOK_EVERY):
        if launcher.gone():
            claim = _claim_to_tell()
            if claim:
                rank, _ = read_launcher()
                launcher.tell(rank, "Run the same command again.")
            # The claim holds until the other ranks of this host have seen it.
            time.sleep(_LOOK_EVERY)
            os._exit(StuckError.exit_code)
