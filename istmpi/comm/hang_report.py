"""The hang watch's rules and messages: which ranks are missing, why, and when the job ends."""

import faulthandler
import os
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from istmpi.comm.whereabouts import Wait, Whereabouts
from istmpi.units import in_seconds

TIMES_THE_SLOWEST = 3
"""The deadline as a multiple of the slowest round, unless the patience is longer."""
TIMES_BEFORE_THE_FIRST = 10
"""The deadline as a multiple of the patience, until the first round ends."""
HASTE = 10.0
"""The longest deadline in seconds after a request to stop: a job then often has only half a
minute."""

_STATES = {
    "T": "its process is stopped (kill -CONT {process} resumes it)",
    "t": "its process is stopped in a debugger",
    "D": "its process waits for a disk or a device",
    "Z": "its process has ended",
    "": "its process has ended",
}
"""The meaning of a process's state letter in /proc; the letter is empty if there is no such
process."""

_FOLDER = "stacks"
_SECONDS_TO_WRITE = 3.0
"""Seconds to wait for files of stack traces: the disk may hang."""


@dataclass(frozen=True)
class Member:
    rank: int
    host: str
    process: int
    started: str = ""
    """The process's start time in clock ticks: numbers of processes are reused."""
    threads_may_call: bool = False
    """True if threads of the rank may call MPI."""
    boot: str = ""
    """A name of the host's system since its start: several hosts may have one name."""
    cores: int = 0
    """The host's cores that the process may use: bit n is that of core n."""
    name: str = ""
    """The name of a process of a replica group in messages; empty for a rank."""

    @property
    def machine(self) -> tuple[str, str]:
        """The host, which its name alone does not tell."""
        return self.host, self.boot

    def __str__(self) -> str:
        if self.name:
            return f"{self.name} on {self.host} (PID {self.process})"
        return f"rank {self.rank} on {self.host} (process {self.process})"


@dataclass(frozen=True)
class Sighting:
    phase: str
    round: int | None
    local_step: int | None
    still: float
    """Seconds since the rank last made progress."""
    arrivals: Mapping[str, int] = field(default_factory=dict)
    """The number of collective calls that the rank has reached, by communicator."""
    waiting: tuple[Wait, ...] = ()
    """The calls in which the rank's training waits for other ranks."""

    @classmethod
    def from_whereabouts(cls, whereabouts: Whereabouts, now: float) -> "Sighting":
        # The training thread may change the whereabouts meanwhile: hence the copies.
        waits = list(whereabouts.waiting.values())
        return cls(
            phase=whereabouts.phase,
            round=whereabouts.round,
            local_step=whereabouts.local_step,
            still=max(now - whereabouts.moved, 0.0),
            arrivals=dict(whereabouts.arrivals),
            waiting=tuple(wait for wait in waits if wait.trains),
        )

    def awaits(self, rank: int, other: "Sighting") -> bool:
        """Return True if this rank waits for ``rank``, whose sighting is ``other``, in a call that
        it has not reached."""
        return any(
            rank in wait.ranks and other.arrivals.get(wait.group, 0) < wait.number
            for wait in self.waiting
        )

    def __str__(self) -> str:
        if self.round is None:
            return self.phase
        step = f", local step {self.local_step}" if self.local_step else ""
        return f"{self.phase}, round {self.round}{step}"


@dataclass(frozen=True)
class Missing:
    member: Member
    why: str
    """``silent``: no answer; ``still``: no progress; ``slow``: progress; ``waits``: a wait for
    other ranks; ``circle``: a wait for ranks that wait for it."""
    since: float
    """Seconds for which the rank has been silent or still, as far as is known."""
    seen: Sighting | None = None
    seen_ago: float = 0.0
    state: str | None = None
    """The state letter of a silent rank's process; None if no other rank on its host answers."""

    @property
    def condition(self) -> str:
        where = f"in {self.seen}"
        if self.why == "silent":
            if self.seen is None:
                return f"{self._silence}; not seen before"
            return f"{self._silence}; last seen {self.seen_ago:.0f} s ago {where}"
        if self.why == "still":
            return f"its process answers but has made no progress for {self.since:.0f} s, {where}"
        if self.why == "slow":
            return f"its process answers and has been busy for {self.since:.0f} s, {where}"
        if self.why == "circle":
            return f"it waits for ranks that wait for it, {where}: they do not make the same calls"
        return f"it waits for other ranks, {where}"

    @property
    def _silence(self) -> str:
        if self.state in _STATES:
            return _STATES[self.state].format(process=self.member.process)
        return "its process does not answer: it is stopped, or its host is gone"


def deadline(patience: float, slowest_round: float) -> float:
    """Return the seconds after which a wait is reported.

    ``slowest_round``: seconds, 0 before a round has ended.
    """
    if not slowest_round:  # no round has ended: setting up may take longer than any round
        return TIMES_BEFORE_THE_FIRST * patience
    return max(patience, TIMES_THE_SLOWEST * slowest_round)


def find_circle(sightings: Mapping[int, Sighting], limit: float) -> set[int]:
    """Return the ranks that have waited for each other for at least ``limit`` seconds, in different
    calls: each of them waits for one that has not reached its call."""
    circle = {rank for rank, seen in sightings.items() if seen.waiting and seen.still >= limit}
    while True:
        ended = set()
        for rank in circle:
            seen = sightings[rank]
            others = circle - {rank}
            if not any(seen.awaits(other, sightings[other]) for other in others):
                ended.add(rank)
        if not ended:
            return circle
        circle -= ended


def find_missing(
    wait: Wait,
    members: Sequence[Member],
    me: int,
    answers: Mapping[int, Sighting],
    silent_for: Mapping[int, float],
    seen: Mapping[int, tuple[Sighting, float]],
    states: Mapping[int, str],
    limit: float,
) -> list[Missing]:
    """Return the ranks that have not reached the call of ``wait``, and those that do not answer.

    Ranks that wait for others are left out, unless all missing ranks wait. ``silent_for``: seconds
    since a rank was first asked in vain. ``seen``: each rank's last sighting and its age in
    seconds. ``states``: processes' state letters. A rank with progress in the last ``limit``
    seconds is slow, otherwise still. ``answers`` has this rank's own sighting, too.
    """
    absent = []
    circle = find_circle(answers, limit)
    if me not in circle:
        circle = set()
    for member in members:
        rank = member.rank
        if rank == me or rank not in wait.ranks:
            continue
        answer = answers.get(rank)
        if answer is None:
            sighting, ago = seen.get(rank, (None, 0.0))
            since = silent_for.get(rank, 0.0)
            absent.append(Missing(member, "silent", since, sighting, ago, states.get(rank)))
        elif answer.arrivals.get(wait.group, 0) < wait.number:
            why = _why_late(answer, limit)
            if rank in circle:
                why = "circle"
            absent.append(Missing(member, why, since=answer.still, seen=answer))
    # Ranks that wait for others are not the cause, unless the ranks wait in a circle.
    causes = [missing for missing in absent if missing.why != "waits"]
    return causes or absent


def _why_late(answer: Sighting, limit: float) -> str:
    if answer.waiting:
        return "waits"
    if answer.still < limit:
        return "slow"
    return "still"


def find_stuck(absent: Collection[Missing], limit: float, hurry: bool) -> list[Missing]:
    """Return the missing ranks that end the job.

    They are silent for one deadline (``limit``), or still or in a circle for two deadlines. After a
    request to stop (``hurry``), a silent rank ends the job at once, another one after one deadline.
    """
    if hurry:
        enough = {"silent": 0.0, "still": limit, "circle": limit}
    else:
        enough = {"silent": limit, "still": 2 * limit, "circle": 2 * limit}
    return [
        missing
        for missing in absent
        if missing.why in enough and missing.since >= enough[missing.why]
    ]


def describe_missing(
    absent: Missing, waited: float, where: str, slowest: tuple[str, float], ends: float
) -> str:
    """Return the line about one missing rank.

    ``slowest``: the slowest phase and its seconds; ``ends``: the seconds of waiting after which the
    job ends, 0 if it does not.
    """
    phase, seconds = slowest
    text = f"waiting for {absent.member} in {where} for {waited:.0f} s: {absent.condition}."
    if phase:
        text += f" The slowest phase so far was {phase}, {in_seconds(seconds)}."
    if ends and absent.why in ("silent", "still", "circle"):
        text += f" The job ends at {ends:.0f} s if nothing changes."
    return text


def describe_slow_call(where: str, waited: float) -> str:
    return (
        f"all ranks respond, but have been sending or writing for {waited:.0f} s in {where}. Check "
        "network and disk."
    )


def describe_wait(
    absent: Sequence[Missing], waited: float, where: str, slowest: tuple[str, float], ends: float
) -> dict[tuple[int, str], str]:
    """Return the lines about a wait by rank and reason: rank -1 if no rank is missing."""
    lines = {}
    for missing in absent:
        key = missing.member.rank, missing.why
        lines[key] = describe_missing(missing, waited, where, slowest, ends)
    if not lines:
        lines[-1, ""] = describe_slow_call(where, waited)
    return lines


def dump_stacks() -> str:
    """Return the stack traces of all threads of this process, or why there are none."""
    try:
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read().decode(errors="replace")
    except OSError as error:
        return str(error)


def keep_stacks(by_rank: Mapping[int, str], run_folder: Path) -> str:
    """Write stack traces into the run's folder; return a sentence with the place or the failure."""
    folder = run_folder / _FOLDER
    # The thread replaces this text, or empties the list once all is written.
    failed = ["it does not answer"]

    def write() -> None:
        # The folder may be writable for others, who may have put a link there.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        try:
            folder.mkdir(exist_ok=True)
            for rank, text in by_rank.items():
                descriptor = os.open(folder / f"rank{rank}.txt", flags, 0o666)
                with open(descriptor, "w", encoding="utf-8") as file:
                    file.write(text)
            failed.clear()
        except OSError as error:
            failed[:] = [error.strerror or str(error)]

    # In a thread, because a disk that hangs may be what the job waits for.
    writer = threading.Thread(target=write, name="stacks", daemon=True)
    writer.start()
    writer.join(_SECONDS_TO_WRITE)
    if failed:
        return f"Stack traces cannot be written to {folder} ({failed[0]})."
    return f"Stack traces: {folder}."
