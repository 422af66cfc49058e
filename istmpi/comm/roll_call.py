"""Asks all ranks where they are if this rank waits for too long, and ends a job that is stuck.

The hang watch's thread on every rank has a communicator of its own. Once a second it sends this
rank's whereabouts to another rank. If this rank has waited for too long, the thread calls the roll:
it asks all ranks where they are, and judges their answers by the rules of
`istmpi.comm.hang_report`. A rank that was asked does not call the roll for a while. Low ranks call
first.

    beat    where I am                 to the rank P/2 after this one
    ask     where are you?             from a rank that has waited for too long, and for whom
    here    where I am, and what I know of others, in answer to ask
    tell    a line for people, to the lowest rank that answers
    end     the job ends; the lowest rank that answers gets all stacks, writes them and ends the job
    stack   what my threads do, in answer to end
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from istmpi.comm import hang_report as report
from istmpi.comm.hang_report import Member, Missing, Sighting
from istmpi.comm.launcher import process_facts
from istmpi.comm.leaving import end_stuck_job
from istmpi.comm.thread_mailbox import ThreadMailbox
from istmpi.comm.whereabouts import Wait, Whereabouts
from istmpi.errors import StuckError

_BEAT = 1.0
"""Seconds between two messages about this rank's whereabouts."""
_ANSWERS = 3.0
"""The most seconds that ranks have to answer, and later to send their stack traces."""
_APART = 0.25
"""Rank r delays its roll call by r times this many seconds, at most by `_LAST`."""
_LAST = 10.0
_BY_FORCE = 10.0
"""Seconds after which a rank that received ``end`` ends by itself."""
_SHORT_TICK = 0.05
_REASONS_SHOWN = 4


@dataclass
class WatchedJob:
    """The job of a hang watch: how long it may hang, and what people are told."""

    patience: float
    """The shortest deadline in seconds."""
    folder: Path
    """The folder that gets stack traces."""
    tell: Callable[[str], None]
    cure: str
    """The advice after a stuck job."""
    wished: Callable[[], str] = str
    """A function that returns the reason of a requested stop, or else an empty text."""


@dataclass
class _Roll:
    wait: Wait
    """The wait of this rank for which the roll was called."""
    began: float
    ends: float
    """The time when the answers are judged, even if some are missing."""
    answers: dict[int, Sighting] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Ending:
    reason: str
    conductor: int
    """The rank that writes all stack traces and ends the job."""
    awaited: frozenset[int]
    """The ranks that answered the roll call, and thus send their stack traces."""


class RollCall:
    """This rank's part in all roll calls of a job.

    Only the hang watch's thread calls it, until it ends; then `close` is collective.
    """

    def __init__(
        self,
        job: WatchedJob,
        members: Sequence[Member],
        rank: int,
        where: Whereabouts,
        mailbox: ThreadMailbox,
        closing: threading.Event,
    ):
        self._job = job
        self._members = members
        self._rank = rank
        self._where = where
        self._mailbox = mailbox
        self._closing = closing
        self._others = [member for member in members if member.rank != rank]
        host = members[rank].host
        self._neighbours = [member for member in self._others if member.host == host]
        # Ranks do not all call at once: low ranks call first.
        self._delay = min(_APART * rank, _LAST)
        self._roll: _Roll | None = None
        self._ending: _Ending | None = None
        self._seen: dict[int, tuple[Sighting, float]] = {}
        """Each rank's last sighting and its time."""
        self._stacks: dict[int, str] = {}
        self._silent_since: dict[int, float] = {}
        self._reported: set[tuple[int, str]] = set()
        self._next_roll = 0.0
        self._next_beat = 0.0
        self._take: dict[str, Callable[..., None]] = {
            "beat": self._take_beat,
            "ask": self._take_question,
            "here": self._take_answer,
            "tell": self._take_line,
            "end": self._take_ending,
            "stack": self._take_stack,
        }

    @property
    def busy(self) -> bool:
        """True while answers or stack traces are awaited: the next look should come soon."""
        return self._roll is not None or self._ending is not None

    def forget(self) -> None:
        """Drop the roll under way and all silences.

        This process was stopped, so it cannot judge the others.
        """
        self._roll = None
        self._silent_since.clear()

    def look(self, now: float) -> None:
        """Take messages, and send or judge what is due at the time ``now``."""
        self._take_messages(now)
        if self._ending:
            self._end_job(self._ending)
            return
        if now >= self._next_beat:
            self._beat(now)
        if self._roll is None:
            self._call_roll_if_due(now)
        elif len(self._roll.answers) == len(self._others) or now > self._roll.ends:
            self._judge(self._roll, now)

    def close(self) -> None:
        self._mailbox.close()

    # ---- messages

    def _send_to_others(self, *message: object) -> None:
        for member in self._others:
            self._mailbox.send(member.rank, *message)

    def _take_messages(self, now: float) -> None:
        for sender, (kind, *values) in self._mailbox.receive():
            self._take[kind](sender, now, *values)

    def _take_beat(self, sender: int, now: float, sighting: Sighting) -> None:
        self._seen[sender] = sighting, now
        if self._roll:  # older beats were received before the roll was called
            self._roll.answers.setdefault(sender, sighting)

    def _take_question(self, sender: int, now: float, awaited: Sequence[int]) -> None:
        sighting = Sighting.from_whereabouts(self._where, now)
        self._mailbox.send(sender, "here", sighting, self._list_sightings(now), self._read_states())
        awaited_here = {rank for wait in list(self._where.waiting.values()) for rank in wait.ranks}
        # The sender judges those that it waits for: a roll call for the same ones would only
        # repeat its questions. In groups of processes, ranks wait for different ones.
        if awaited_here <= {*awaited}:
            self._next_roll = max(self._next_roll, now + self._limit + self._delay)

    def _take_answer(
        self,
        sender: int,
        now: float,
        sighting: Sighting,
        seen_ago: Mapping[int, tuple[Sighting, float]],
        states: Mapping[int, str],
    ) -> None:
        """Keep an answer, and what it says of other ranks if that is newer."""
        self._seen[sender] = sighting, now
        if self._roll is None:
            return
        self._roll.answers[sender] = sighting
        self._roll.states |= states
        for rank, (other_sighting, ago) in seen_ago.items():
            if rank not in self._seen or now - ago > self._seen[rank][1]:
                self._seen[rank] = other_sighting, now - ago

    def _take_line(self, sender: int, now: float, text: str) -> None:
        self._say(text)

    def _take_ending(self, sender: int, now: float, ending: _Ending) -> None:
        # If two ranks decide at once, each rank follows the first that it hears of.
        self._ending = self._ending or ending

    def _take_stack(self, sender: int, now: float, stack: str) -> None:
        self._stacks[sender] = stack

    def _beat(self, now: float) -> None:
        self._next_beat = now + _BEAT
        self._where.count_bytes()
        size = len(self._members)
        # Half-way round the ranks is usually another host, which outlives this one.
        half_way_round = (self._rank + max(size // 2, 1)) % size
        sighting = Sighting.from_whereabouts(self._where, now)
        self._mailbox.send_unless_last_is_under_way(half_way_round, "beat", sighting)

    def _list_sightings(self, now: float) -> dict[int, tuple[Sighting, float]]:
        """Return each rank's last sighting and its age in seconds: clocks of hosts differ."""
        return {rank: (sighting, now - at) for rank, (sighting, at) in self._seen.items()}

    def _read_states(self) -> dict[int, str]:
        """Return the state letter of each other process on this host; empty if it has ended."""
        states = {}
        for member in self._neighbours:
            state, started = process_facts(member.process)
            # The system may have given the number of a dead process to another one.
            states[member.rank] = state if started == member.started else ""
        return states

    # ---- the roll

    @property
    def _limit(self) -> float:
        return report.deadline(self._job.patience, self._where.slowest_round)

    @property
    def _first_limit(self) -> float:
        """The deadline until which waits are reported.

        It is shorter than `_limit` if a stop is requested.
        """
        if self._job.wished():
            return min(self._limit, report.HASTE)
        return self._limit

    def _measure_wait(self, wait: Wait, now: float) -> float:
        """Return the seconds of a wait, without the time in which this process was stopped."""
        return now - max(wait.since, self._where.awake_since)

    def _call_roll_if_due(self, now: float) -> None:
        """Ask all ranks where they are, if this rank has waited for too long."""
        waits = list(self._where.waiting.values())
        wait = min(waits, key=lambda wait: (wait.for_itself, wait.since), default=None)
        shortest_seconds = _begin_to_ask(min(self._limit, report.HASTE))
        if wait is None or self._measure_wait(wait, now) < shortest_seconds:
            self._silent_since.clear()
            self._reported.clear()
            return
        limit = self._first_limit
        # A rank that waits for others knows more than one that waits for itself: it calls first.
        extra_seconds = limit if wait.for_itself else 0.0
        due_seconds = _begin_to_ask(limit) + self._delay + extra_seconds
        if now >= self._next_roll + extra_seconds and self._measure_wait(wait, now) >= due_seconds:
            self._roll = _Roll(wait=wait, began=now, ends=now + limit - _begin_to_ask(limit))
            self._send_to_others("ask", wait.ranks)

    def _judge(self, roll: _Roll, now: float) -> None:
        """Report the ranks that the answers show as missing, or end the job for them."""
        self._roll = None
        self._next_roll = roll.began + self._first_limit
        if self._where.waiting.get(roll.wait.group) != roll.wait:
            return  # the ranks came while they were asked
        self._note_silence(roll)
        absent = report.find_missing(
            roll.wait,
            self._name_members(),
            self._rank,
            answers={**roll.answers, self._rank: Sighting.from_whereabouts(self._where, now)},
            silent_for={rank: roll.began - since for rank, since in self._silent_since.items()},
            seen=self._list_sightings(now),
            states={**roll.states, **self._read_states()},
            limit=self._limit,
        )
        hopeless = report.find_stuck(absent, self._limit, hurry=bool(self._job.wished()))
        if hopeless:
            self._decide_to_end(hopeless, roll)
        else:
            self._report(absent, roll, now)

    def _name_members(self) -> list[Member]:
        """Return all processes as messages call them: groups may be formed after the watch."""
        names = self._where.names
        return [replace(member, name=names.get(member.rank, "")) for member in self._members]

    def _note_silence(self, roll: _Roll) -> None:
        for rank in roll.answers:
            self._silent_since.pop(rank, None)
        for member in self._others:
            if member.rank not in roll.answers:
                self._silent_since.setdefault(member.rank, roll.began)

    def _decide_to_end(self, hopeless: Sequence[Missing], roll: _Roll) -> None:
        """Begin the end of the job, on this rank and all others."""
        reasons = [f"{missing.member}: {missing.condition}" for missing in hopeless]
        shown = reasons[:_REASONS_SHOWN]
        if len(reasons) > _REASONS_SHOWN:
            shown.append("...")
        self._ending = _Ending(
            reason="; ".join(shown),
            conductor=self._speaker(roll),
            awaited=frozenset([self._rank, *roll.answers]),
        )
        self._send_to_others("end", self._ending)

    def _report(self, absent: Sequence[Missing], roll: _Roll, now: float) -> None:
        """Print what was not printed before, on the lowest rank that answers."""
        waited = self._measure_wait(roll.wait, now)
        lines = report.describe_wait(
            absent,
            waited,
            where=f"{self._where.phase} ({roll.wait.call})",
            slowest=self._where.slowest_phase,
            ends=waited + self._first_limit,
        )
        speaker = self._speaker(roll)
        for key, text in lines.items():
            if key in self._reported:
                continue
            if speaker == self._rank:
                self._say(text)
            else:
                self._mailbox.send(speaker, "tell", text)
        self._reported |= lines.keys()

    def _speaker(self, roll: _Roll) -> int:
        """Return the lowest rank that answers: it alone speaks, so that people read a line once."""
        return min([self._rank, *roll.answers])

    def _say(self, text: str) -> None:
        with suppress(OSError):
            self._job.tell(text)

    # ---- the end

    def _end_job(self, ending: _Ending) -> None:
        """Collect stack traces, then end the job; end this process alone if that fails."""
        began = time.monotonic()
        stack = report.dump_stacks()
        self._stacks[self._rank] = stack
        if ending.conductor != self._rank:
            self._mailbox.send(ending.conductor, "stack", stack)
        while True:
            seconds = time.monotonic() - began
            if seconds >= _BY_FORCE:
                # The conductor hangs, too. An orderly end would wait for it in MPI_Finalize.
                os._exit(StuckError.exit_code)
            if ending.conductor == self._rank:
                complete = ending.awaited <= self._stacks.keys()
                if complete or seconds > _ANSWERS:
                    self._abort(ending)
            if self._closing.wait(_SHORT_TICK):
                return
            self._take_messages(time.monotonic())

    def _abort(self, ending: _Ending) -> None:
        stop = self._job.wished()
        requested = f" (stop requested by {stop})" if stop else ""
        kept = report.keep_stacks(self._stacks, self._job.folder)
        end_stuck_job(
            StuckError(
                f"aborting{requested}, a rank does not respond: {ending.reason}. {kept} "
                f"{self._job.cure}"
            )
        )


def _begin_to_ask(limit: float) -> float:
    """Return the seconds of a wait after which the roll is called.

    Answers then come before the deadline ``limit``.
    """
    return limit - min(_ANSWERS, limit / 2)
