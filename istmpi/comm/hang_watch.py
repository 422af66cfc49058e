"""Watches ranks that wait for others: names a rank that does not come, and ends a job that is
stuck.

A thread on every rank has a communicator of its own. Once a second it sends this rank's whereabouts
to another rank. If this rank has waited for too long, the thread calls the roll: it asks all ranks
where they are, and judges their answers by the rules of `istmpi.comm.hang_report`. A rank that was
asked does not call the roll for a while. Low ranks call first.

    beat    where I am                 to the rank P/2 after this one
    ask     where are you?             from a rank that has waited for too long
    here    where I am, and what I know of others, in answer to ask
    tell    a line for people, to the lowest rank that answers
    end     the job ends; the lowest rank that answers gets all stacks, writes them and ends the job
    stack   what my threads do, in answer to end
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from istmpi.comm import hang_report as report
from istmpi.comm import mpi
from istmpi.comm.arrival import LauncherWatch, watched
from istmpi.comm.communicator import Communicator
from istmpi.comm.hang_report import Member, Sighting
from istmpi.comm.launcher import process_facts
from istmpi.comm.leaving import end_stuck_job
from istmpi.comm.thread_mailbox import ThreadMailbox
from istmpi.comm.whereabouts import Wait
from istmpi.errors import StuckError
from istmpi.foreign import one_line

_TICK = 0.25
_SHORT_TICK = 0.05
_BEAT = 1.0
_ANSWERS = 3.0
"""The most seconds that ranks have to answer, and later to send their stack traces."""
_APART = 0.25
"""Rank r delays its roll call by r times this many seconds, at most by `_LAST`."""
_LAST = 10.0
_BY_FORCE = 10.0
"""Seconds after which a rank that received ``end`` exits by itself."""

WHILE_LOADING = "Training had not begun: run the same command again."

Seen = dict[int, tuple[Sighting, float]]
"""Each rank's last sighting and its time; in messages, the age in seconds instead of the time."""


def _print(text: str) -> None:
    print(f"istmpi: {one_line(text)}", file=sys.stderr, flush=True)


@dataclass
class _Roll:
    wait: Wait
    began: float
    ends: float
    answers: dict[int, Sighting] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)


class HangWatch:
    """Watches this rank's waits and launcher, until the watch is closed. Creation is collective.

    ``patience``: the shortest deadline in seconds; with 0 no rank is reported. ``tell`` prints
    messages for people, on any rank. ``folder`` gets stack traces. ``cure``: the advice after a
    stuck job. If threads may not call MPI, only the launcher is watched.
    """

    def __init__(
        self,
        communicator: Communicator,
        patience: float,
        folder: Path,
        tell: Callable[[str], None] = _print,
        cure: str = "Continue from the last checkpoint with --resume auto.",
    ):
        self._communicator, self._where = communicator, communicator.whereabouts
        self._where.restart()
        self._patience, self._folder, self._tell, self._wished, self._cure = (
            patience,
            folder,
            tell,
            str,
            cure,
        )
        self._launcher = LauncherWatch()
        facts = communicator.allgather(
            (socket.gethostname(), os.getpid(), process_facts(os.getpid())[1])
        )
        self._members = [
            Member(rank, host, process) for rank, (host, process, _) in enumerate(facts)
        ]
        self._process_starts = [start for _, _, start in facts]
        self._rank = communicator.rank
        self._turn = min(_APART * self._rank, _LAST)
        self._me = self._members[self._rank]
        self._others = [member for member in self._members if member != self._me]
        self._neighbours = [member for member in self._others if member.host == self._me.host]
        calls = (
            communicator.size > 1
            and patience > 0
            and all(communicator.allgather(mpi.threads_may_call()))
        )
        self._mailbox = ThreadMailbox(communicator.mpi.Dup()) if calls else None
        self._seen: Seen = {}
        self._roll: _Roll | None = None
        self._ending: tuple[str, int, set[int]] | None = None
        """The reason for the end of the job, the rank that ends it, and the ranks that answer."""
        self._stacks: dict[int, str] = {}
        self._silent_since: dict[int, float] = {}
        self._reported: set[tuple] = set()
        self._next_roll = self._next_beat = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="roll-call", daemon=True)
        if self._mailbox or self._launcher.there:
            self._thread.start()
        watched.set()

    def of_run(self, folder: Path, wished: Callable[[], str]) -> None:
        """Set the run's folder, and a function that returns the reason of a requested stop or else
        an empty text."""
        self._folder, self._wished = folder, wished

    def __enter__(self) -> "HangWatch":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        if error is None or getattr(error, "everywhere", False):
            self.close()
        else:
            self._stop(1.0)

    def close(self) -> None:
        if not self._closing.is_set():
            self._communicator.barrier()
            self._stop(None)
            if self._mailbox:
                self._mailbox.close()

    def _stop(self, seconds: float | None) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _serve(self) -> None:
        while not self._closing.wait(_SHORT_TICK if self._roll or self._ending else _TICK):
            try:
                self._look(time.monotonic())
            except OSError:
                continue  # the system has no file descriptor left, or no memory: the next look may succeed
            except Exception as error:
                if not mpi.lost_connection(error):
                    raise
                return  # a rank is gone, and the ranks that talk with it report that

    def _look(self, now: float) -> None:
        if self._where.watch(now):
            self._roll = None
            self._silent_since.clear()
        self._launcher.look(self._me, self._neighbours, self._cure)
        if not self._mailbox:
            return
        self._take_messages(now)
        if self._ending:
            self._end_job(*self._ending)
            return
        if now >= self._next_beat:
            self._beat(now)
        if not self._roll:
            self._call_roll_if_due(now)
        elif len(self._roll.answers) == len(self._others) or now > self._roll.ends:
            self._judge(now)

    # ---- messages

    def _send_to_others(self, *message: object) -> None:
        for member in self._others:
            self._mailbox.send(member.rank, *message)

    def _take_messages(self, now: float) -> None:
        for rank, (kind, *values) in self._mailbox.received():
            if kind == "beat":
                self._seen[rank] = values[0], now
                if self._roll:  # older beats were received before the roll was called
                    self._roll.answers.setdefault(rank, values[0])
            elif kind == "ask":
                seen = {other: (sighting, now - at) for other, (sighting, at) in self._seen.items()}
                self._mailbox.send(
                    rank, "here", Sighting.of(self._where, now), seen, self._states()
                )
                self._next_roll = max(self._next_roll, now + self._limit + self._turn)
            elif kind == "here":
                self._take_answer(rank, *values, now)
            elif kind == "tell":
                self._say(values[0])
            elif kind == "end":
                self._ending = self._ending or values
            elif kind == "stack":
                self._stacks[rank] = values[0]

    def _take_answer(
        self, rank: int, sighting: Sighting, seen: Seen, states: dict[int, str], now: float
    ) -> None:
        self._seen[rank] = sighting, now
        if self._roll:
            self._roll.answers[rank] = sighting
            self._roll.states |= states
            for other, (sighting, ago) in seen.items():
                if other not in self._seen or now - ago > self._seen[other][1]:
                    self._seen[other] = sighting, now - ago

    def _beat(self, now: float) -> None:
        self._next_beat = now + _BEAT
        self._where.count_bytes()
        size = len(self._members)
        half_way_round = (self._rank + max(size // 2, 1)) % size
        self._mailbox.send_unless_last_is_under_way(
            half_way_round, "beat", Sighting.of(self._where, now)
        )

    def _states(self) -> dict[int, str]:
        facts = {member.rank: process_facts(member.process) for member in self._neighbours}
        return {
            rank: state if start == self._process_starts[rank] else ""
            for rank, (state, start) in facts.items()
        }

    # ---- the roll

    @property
    def _limit(self) -> float:
        return report.deadline(self._patience, self._where.slowest_round)

    @property
    def _first_limit(self) -> float:
        return min(self._limit, report.HASTE) if self._wished() else self._limit

    def _waited(self, wait: Wait, now: float) -> float:
        return now - max(wait.since, self._where.awake_since)

    def _call_roll_if_due(self, now: float) -> None:
        waits = list(self._where.waiting.values())
        wait = min(waits, key=lambda wait: (wait.for_itself, wait.since), default=None)
        if wait is None or self._waited(wait, now) < _begin_to_ask(min(self._limit, report.HASTE)):
            self._silent_since.clear()
            self._reported.clear()
            return
        last = (
            self._first_limit if wait.for_itself else 0.0
        )  # a rank that waits for others knows more: it calls first
        due = _begin_to_ask(self._first_limit) + self._turn + last
        if now >= self._next_roll + last and self._waited(wait, now) >= due:
            self._roll = _Roll(
                wait, now, now + self._first_limit - _begin_to_ask(self._first_limit)
            )
            self._send_to_others("ask")

    def _judge(self, now: float) -> None:
        roll, self._roll = self._roll, None
        self._next_roll = roll.began + self._first_limit
        if self._where.waiting.get(roll.wait.group) != roll.wait:
            return
        for rank in roll.answers:
            self._silent_since.pop(rank, None)
        for member in self._others:
            if member.rank not in roll.answers:
                self._silent_since.setdefault(member.rank, roll.began)
        silent_for = {rank: roll.began - since for rank, since in self._silent_since.items()}
        seen = {rank: (sighting, now - at) for rank, (sighting, at) in self._seen.items()}
        asked = roll.wait, self._members, self._rank, roll.answers
        absent = report.missing(
            *asked, silent_for, seen, {**roll.states, **self._states()}, self._limit
        )
        hopeless = report.stuck(absent, self._limit, bool(self._wished()))
        speaker = min([self._rank, *roll.answers])
        if hopeless:
            reasons = "; ".join(f"{each.member}: {each.condition}" for each in hopeless[:4])
            self._ending = (
                reasons + "; ..." * (len(hopeless) > 4),
                speaker,
                {self._rank, *roll.answers},
            )
            self._send_to_others("end", *self._ending)
            return
        waited, where = self._waited(roll.wait, now), f"{self._where.phase} ({roll.wait.call})"
        lines = report.lines(
            absent, waited, where, self._where.slowest_phase, waited + self._first_limit
        )
        news = [text for key, text in lines.items() if key not in self._reported]
        self._reported |= set(lines)
        for text in news:
            if speaker == self._rank:
                self._say(text)
            else:
                self._mailbox.send(speaker, "tell", text)

    def _say(self, text: str) -> None:
        with suppress(OSError):
            self._tell(text)

    def _end_job(self, reason: str, conductor: int, awaited: set[int]) -> None:
        began, self._stacks[self._rank] = time.monotonic(), report.stacks()
        if conductor != self._rank:
            self._mailbox.send(conductor, "stack", self._stacks[self._rank])
        while (seconds := time.monotonic() - began) < _BY_FORCE:
            if conductor == self._rank and (awaited <= self._stacks.keys() or seconds > _ANSWERS):
                stop = self._wished()
                asked = f" (stop requested by {stop})" if stop else ""
                kept = report.keep_stacks(self._stacks, self._folder)
                text = f"aborting{asked}, a rank does not respond: {reason}. {kept} {self._cure}"
                end_stuck_job(StuckError(text))
            if self._closing.wait(_SHORT_TICK):
                return
            self._take_messages(time.monotonic())
        os._exit(StuckError.exit_code)


def _begin_to_ask(limit: float) -> float:
    return limit - min(_ANSWERS, limit / 2)
