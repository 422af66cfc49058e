"""Calls the roll where ranks wait for one that does not come: names it, and ends the job where it is stuck.

A thread on every rank listens on a communicator of its own, tells another rank once a second where this one is, and
looks whether this one waits for too long. Then it asks all ranks where they are; what it makes of the answers stands in
`istmpi.comm.roll`. Who is asked by another does not ask by itself for a while, and those with low numbers ask first.

    beat    where I am                 to the rank half way round
    ask     where are you?             from one that has waited for too long
    here    where I am, and whom I know about, in answer to that
    tell    what a person shall read, to the lowest rank that answers
    end     the job ends; the lowest rank that answers gets all stacks, writes them and ends it
    stack   what my threads do, in answer to that
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from istmpi.comm import mpi
from istmpi.comm.arrival import watched
from istmpi.comm.communicator import Communicator
from istmpi.comm.io_count import counted_bytes
from istmpi.comm.launcher import process_facts, starter
from istmpi.comm.leaving import end_stuck_job
from istmpi.comm.post import Post
from istmpi.comm.roll import HASTE, Member, Missing, Sighting, all_here, deadline, line, missing, stuck
from istmpi.comm.stacks import keep, stacks
from istmpi.comm.whereabouts import Wait
from istmpi.errors import StuckError

_TICK = 0.25
_SHORT_TICK = 0.05
"""While answers are awaited."""
_BEAT = 1.0
_ANSWERS = 3.0
"""Seconds at most that ranks have to answer, and to hand in their stacks."""
_APART = 0.25
"""Seconds between the moments at which two neighbours in number ask, up to `_LAST`."""
_LAST = 10.0
_BY_FORCE = 10.0
"""Seconds after which a rank that was told of the end ends by itself."""


@dataclass
class _Roll:
    """One that is being called."""

    wait: Wait
    began: float
    answers: dict[int, Sighting] = field(default_factory=dict)
    seen: dict[int, tuple[Sighting, float]] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)


@dataclass
class _End:
    """The end of the job, as this rank knows of it."""

    said: str
    conductor: int
    awaited: set[int]
    began: float
    stacks: dict[int, str] = field(default_factory=dict)


def while_loading(communicator: Communicator, patience: float, folder: Path) -> "RollCall":
    """A roll-call before a run has its own: nothing is trained yet."""
    tell = partial(print, "istmpi:", file=sys.stderr, flush=True)
    return RollCall(communicator, patience, folder, tell, cure="Nothing is trained yet: start the same command again.")


class RollCall:
    """Watches over this rank's waits, and over its launcher, until it is closed. Making it is collective.

    As a context manager it is closed by all ranks together unless one of them alone has failed. ``patience``: the least
    deadline in seconds; 0: nobody is missed. ``tell`` is given what a person shall read, on any rank. ``wished``: why
    this rank may be about to stop, empty where it is not. ``cure``: what to do after the end of a stuck job. Without an
    MPI library that threads may call it looks after the launcher alone.
    """

    def __init__(
        self,
        communicator: Communicator,
        patience: float,
        folder: Path,
        tell: Callable[[str], None],
        wished: Callable[[], str] = str,
        cure: str = "The same command with --resume auto goes on from the last checkpoint.",
    ):
        self._communicator, self._where = communicator, communicator.whereabouts
        self._where.restart()
        self._patience, self._folder, self._tell, self._wished, self._cure = patience, folder, tell, wished, cure
        self._launcher, self._launcher_missed = starter(), False
        me = socket.gethostname(), os.getpid(), process_facts(os.getpid())[1]
        facts = communicator.allgather((communicator.ranks[communicator.rank], *me))
        self._members = [Member(rank, host, process) for rank, host, process, _ in facts]
        self._began = {rank: began for rank, _, _, began in facts}
        self._me = self._members[communicator.rank]
        self._place = {member.rank: place for place, member in enumerate(self._members)}
        self._neighbours = [one for one in self._members if one.host == self._me.host and one != self._me]
        calls = communicator.size > 1 and patience > 0 and all(communicator.allgather(mpi.threads_may_call()))
        self._post = Post(communicator.mpi.Dup()) if calls else None
        self._seen: dict[int, tuple[Sighting, float]] = {}
        """What others told of themselves last, and when."""
        self._roll: _Roll | None = None
        self._end: _End | None = None
        self._silent_since: dict[int, float] = {}
        self._told: set[tuple] = set()
        self._next_roll = self._next_beat = 0.0
        self._bytes = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="roll-call", daemon=True)
        if self._post or self._launcher:
            self._thread.start()
        watched()

    def of_run(self, folder: Path, wished: Callable[[], str]) -> None:
        """Know the run's folder, and why this rank may be about to stop, which nobody knew as the roll-call began."""
        self._folder, self._wished = folder, wished

    def __enter__(self) -> "RollCall":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        self.close(together=error is None or getattr(error, "everywhere", False))

    def close(self, together: bool = True) -> None:
        """Watch no longer; ``together``: all ranks close, and what is under way between them arrives."""
        if self._closing.is_set():
            return
        if together:
            self._communicator.barrier()
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(None if together else 1.0)
        if together and self._post:
            self._post.close()

    def _serve(self) -> None:
        while not self._closing.wait(_SHORT_TICK if self._roll or self._end else _TICK):
            try:
                self._look(time.monotonic())
            except OSError:
                continue  # the system has no file descriptor left, or no memory: the next look may succeed
            except Exception as error:
                if not mpi.lost_connection(error):
                    raise
                return  # a rank is gone, and those who talk with it say so

    def _look(self, now: float) -> None:
        if self._where.looked(now):
            self._roll = None
            self._silent_since.clear()
        self._see_launcher()
        if not self._post:
            return
        for place, message in self._post.received():
            self._take(self._members[place].rank, message, now)
        if self._end:
            self._go_on_ending(now)
            return
        if now >= self._next_beat:
            self._beat(now)
        if self._roll:
            everybody = len(self._roll.answers) == len(self._members) - 1
            if everybody or now > self._roll.began + _time_to_answer(self._first_limit):
                roll, self._roll = self._roll, None
                self._judge(roll, now)
        else:
            self._call(now)

    # ---- messages

    def _send(self, rank: int, *message: Any) -> None:
        self._post.send(self._place[rank], *message)

    def _take(self, rank: int, message: tuple, now: float) -> None:
        kind, *rest = message
        if kind == "beat":
            self._seen[rank] = rest[0], now
            if self._roll:  # all that came before was received before it was called
                self._roll.answers.setdefault(rank, rest[0])
        elif kind == "ask":
            mine = Sighting.of(self._where, now)
            known = {other: (seen, now - at) for other, (seen, at) in self._seen.items()}
            self._send(rank, "here", mine, known, self._states())
            self._next_roll = max(self._next_roll, now + self._limit + self._later)
        elif kind == "here":
            mine, known, states = rest
            self._seen[rank] = mine, now
            if self._roll:
                self._roll.answers[rank] = mine
                self._roll.states |= states
                for other, (seen, ago) in known.items():
                    if ago < now - self._seen.get(other, (None, -1e9))[1]:
                        self._seen[other] = seen, now - ago
        elif kind == "tell":
            self._say(rest[0])
        elif kind == "end":
            self._begin_to_end(*rest, now)
        elif kind == "stack" and self._end:
            self._end.stacks[rank] = rest[0]

    def _beat(self, now: float) -> None:
        self._next_beat = now + _BEAT
        self._count_bytes()
        size = len(self._members)
        to = (self._communicator.rank + max(size // 2, 1)) % size
        self._post.send_unless_last_is_under_way(to, "beat", Sighting.of(self._where, now))

    def _count_bytes(self) -> None:
        before, self._bytes = self._bytes, counted_bytes(self._bytes)
        if self._bytes != before:
            self._where.get_on()

    def _states(self) -> dict[int, str]:
        facts = {one.rank: process_facts(one.process) for one in self._neighbours}
        return {rank: state if began == self._began[rank] else "" for rank, (state, began) in facts.items()}

    # ---- the roll

    @property
    def _limit(self) -> float:
        return deadline(self._patience, self._where.slowest_round)

    @property
    def _later(self) -> float:
        return min(_APART * self._communicator.rank, _LAST)

    @property
    def _first_limit(self) -> float:
        return min(self._limit, HASTE) if self._wished() else self._limit

    def _waited(self, wait: Wait, now: float) -> float:
        return now - max(wait.since, self._where.awake_since)

    def _call(self, now: float) -> None:
        """Call the roll if this rank waits for too long."""
        waits = list(self._where.waiting.values())
        wait = min(waits, key=lambda one: (one.own, one.since), default=None)
        if wait is None or self._waited(wait, now) < _begin_to_ask(min(self._limit, HASTE)):
            self._silent_since.clear()
            self._told.clear()
            return
        last = self._first_limit if wait.own else 0.0  # whoever waits for another knows more
        due = _begin_to_ask(self._first_limit) + self._later + last
        if now >= self._next_roll + last and self._waited(wait, now) >= due:
            self._roll = _Roll(wait, now)
            for member in self._members:
                if member != self._me:
                    self._send(member.rank, "ask")

    def _judge(self, roll: _Roll, now: float) -> None:
        """Make of a roll what there is to say, and to do."""
        self._next_roll = roll.began + self._first_limit
        if self._where.waiting.get(roll.wait.group) != roll.wait:
            return
        for member in self._members:
            if member.rank in roll.answers or member == self._me:
                self._silent_since.pop(member.rank, None)
            else:
                self._silent_since.setdefault(member.rank, roll.began)
        silent_for = {rank: roll.began - since for rank, since in self._silent_since.items()}
        seen = {rank: (what, now - at) for rank, (what, at) in self._seen.items()}
        states = {**roll.states, **self._states()}
        found = missing(roll.wait, self._members, self._me.rank, roll.answers, silent_for, seen, states, self._limit)
        hopeless = stuck(found, self._limit, bool(self._wished()))
        speaker = min([self._me.rank, *roll.answers])
        if hopeless:
            said = (
                f"{'; '.join(f'{one.member}: {one.condition}' for one in hopeless[:4])}{'; ...' * (len(hopeless) > 4)}"
            )
            awaited = {self._me.rank, *roll.answers}
            for member in self._members:
                if member != self._me:
                    self._send(member.rank, "end", said, speaker, awaited)
            self._begin_to_end(said, speaker, awaited, now)
            return
        for text in self._news(roll.wait, found, now):
            if speaker == self._me.rank:
                self._say(text)
            else:
                self._send(speaker, "tell", text)

    def _news(self, wait: Wait, found: list[Missing], now: float) -> list[str]:
        """A line for each that is missing, where it was not told yet."""
        waited, where = self._waited(wait, now), f"{self._where.phase} ({wait.call})"
        ends = waited + self._first_limit
        lines = {(one.member.rank, one.why): line(one, waited, where, self._where.slowest_phase, ends) for one in found}
        if not found:
            lines = {(-1, "all"): all_here(where, waited)}
        fresh = [text for key, text in lines.items() if key not in self._told]
        self._told |= set(lines)
        return fresh

    def _say(self, text: str) -> None:
        with suppress(OSError):
            self._tell(text)

    # ---- the end

    def _begin_to_end(self, said: str, conductor: int, awaited: set[int], now: float) -> None:
        if self._end:
            return
        self._end = _End(said, conductor, awaited, now)
        if conductor == self._me.rank:
            self._end.stacks[conductor] = stacks()
        else:
            self._send(conductor, "stack", stacks())

    def _go_on_ending(self, now: float) -> None:
        end = self._end
        if now > end.began + _BY_FORCE:
            os._exit(StuckError.exit_code)
        if end.conductor != self._me.rank:
            return
        if end.awaited <= end.stacks.keys() or now > end.began + _ANSWERS:
            why = self._wished()
            asked = f", and a stop was asked for by {why}" if why else ""
            left = keep(end.stacks, self._folder)
            error = StuckError(
                f"the job ends, for ranks wait for one that does not come{asked}: {end.said}. {left} {self._cure}"
            )
            end_stuck_job(error)

    def _see_launcher(self) -> None:
        """End this process where its launcher is gone: nobody else would."""
        if self._launcher is None or process_facts(self._launcher[0])[1] == self._launcher[1]:
            self._launcher_missed = False
            return
        if not self._launcher_missed:  # one that ends the job is given a moment to end this rank
            self._launcher_missed = True
            return
        if not any(one.rank < self._me.rank for one in self._neighbours):
            error = StuckError(
                f"the launcher of rank {self._me.rank} on {self._me.host} (process {self._launcher[0]}) is gone, and "
                f"the ranks of this host end. {self._cure}"
            )
            with suppress(OSError):
                print(f"istmpi: {error}", file=sys.stderr, flush=True)
        os._exit(StuckError.exit_code)


def _time_to_answer(limit: float) -> float:
    return min(_ANSWERS, limit / 2)


def _begin_to_ask(limit: float) -> float:
    return limit - _time_to_answer(limit)
