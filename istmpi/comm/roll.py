"""What is made of a roll: who is missing, what holds it, whether the job shall end, and the words for it. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from istmpi.comm.whereabouts import Wait, Whereabouts
from istmpi.units import in_seconds

TIMES_THE_SLOWEST = 3
"""Of the slowest round: nobody is missed before."""
TIMES_BEFORE_THE_FIRST = 10
"""Of the patience, until a round has shown how long one takes: data are read, a network is looked at, torch begins."""
HASTE = 10.0
"""Seconds of the deadline at most, once a stop was asked for: who asks gives a job half a minute, often."""

_STATES = {
    "T": "its process is stopped (kill -CONT {process} wakes it)",
    "t": "its process is held by a debugger",
    "D": "its process waits for a disk or a device and does not answer",
    "Z": "its process has ended",
    "": "its process has ended",
}
"""What the system's letter for a process means; empty where there is no such process."""


@dataclass(frozen=True)
class Member:
    """A rank, as a person finds it."""

    rank: int
    host: str
    process: int

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (process {self.process})"


@dataclass(frozen=True)
class Sighting:
    """What a rank says of itself at a moment."""

    phase: str
    round: int | None
    local_step: int | None
    still: float
    """Seconds since it last did something else than before."""
    met: Mapping[str, int] = field(default_factory=dict)
    """Collective calls that it has come to, by communicator."""
    waits: bool = False
    """What trains there waits for others."""

    @staticmethod
    def of(whereabouts: Whereabouts, now: float) -> "Sighting":
        return Sighting(
            whereabouts.phase,
            whereabouts.round,
            whereabouts.local_step,
            max(now - whereabouts.moved, 0.0),  # it moves on while it is looked at
            dict(whereabouts.met),
            any(wait.trains for wait in list(whereabouts.waiting.values())),
        )

    def __str__(self) -> str:
        if self.round is None:
            return self.phase
        step = f", local step {self.local_step}" if self.local_step else ""
        return f"{self.phase}, round {self.round}{step}"


@dataclass(frozen=True)
class Missing:
    """A rank for which others wait, and why."""

    member: Member
    why: str
    """``silent``, ``still`` (it answers and does not get on), ``slow`` (it does) or ``waits`` (for others)."""
    since: float
    """Seconds for which it has been silent or still, as far as is known."""
    seen: Sighting | None = None
    seen_ago: float = 0.0
    state: str | None = None
    """The system's letter for its process, of one that is silent and has a neighbour on its host that is not."""

    @property
    def condition(self) -> str:
        """What holds it, in words."""
        last = f"last seen {self.seen_ago:.0f} s ago in {self.seen}" if self.seen else "not seen before"
        if self.why == "silent":
            known = _STATES.get(self.state, "") if self.state is not None else ""
            held = known.format(process=self.member.process) or "its process does not answer: stopped, or its host gone"
            return f"{held}; {last}"
        where = f"in {self.seen}"
        if self.why == "still":
            return f"its process answers and has not got on for {self.since:.0f} s, {where}"
        if self.why == "slow":
            return f"its process answers and is at one thing for {self.since:.0f} s, {where}"
        return f"it waits for others, {where}"


def deadline(patience: float, slowest_round: float) -> float:
    """Seconds after which who is waited for is missed."""
    return max(patience, TIMES_THE_SLOWEST * slowest_round) if slowest_round else TIMES_BEFORE_THE_FIRST * patience


def missing(
    wait: Wait,
    members: Sequence[Member],
    me: int,
    answers: Mapping[int, Sighting],
    silent_for: Mapping[int, float],
    seen: Mapping[int, tuple[Sighting, float]],
    states: Mapping[int, str],
    limit: float,
) -> list[Missing]:
    """The ranks that have not come to where one waits, and those that do not answer.

    ``silent_for``: seconds since a rank was first asked in vain. ``seen``: what was last known of ranks, and how many
    seconds ago. ``states``: the letters of processes. ``limit``: who has got on within so many seconds is slow.
    """
    found = []
    for member in members:
        rank = member.rank
        if rank == me or rank not in wait.ranks:
            continue
        if rank not in answers:
            found.append(
                Missing(member, "silent", silent_for.get(rank, 0.0), *seen.get(rank, (None, 0.0)), states.get(rank))
            )
            continue
        answer = answers[rank]
        if wait.number and answer.met.get(wait.group, 0) >= wait.number:
            continue
        why = "waits" if answer.waits else "slow" if answer.still < limit else "still"
        found.append(Missing(member, why, answer.still, answer))
    held = [one for one in found if one.why != "waits"]
    return held or found


def stuck(found: Collection[Missing], limit: float, hurry: bool) -> list[Missing]:
    """Those of the missing for whom nobody shall wait any longer: silent for one deadline, still for two.

    Once a stop was asked for (``hurry``) they are silent at all, and still for one.
    """
    enough = {"silent": 0 if hurry else limit, "still": limit if hurry else 2 * limit}
    return [one for one in found if one.why in enough and one.since >= enough[one.why]]


def line(one: Missing, waited: float, where: str, slowest: tuple[str, float], ends: float) -> str:
    """What is told of a missing rank. ``ends``: after how many seconds of waiting the job will end; 0: it will not."""
    phase, took = slowest
    remark = f" The slowest phase so far was {phase}, {in_seconds(took)}." if phase else ""
    then = f" The job ends at {ends:.0f} s if nothing changes." if ends and one.why in ("silent", "still") else ""
    return f"{one.member} is waited for in {where} for {waited:.0f} s: {one.condition}.{remark}{then}"


def all_here(where: str, waited: float) -> str:
    """What is told where nobody is missing."""
    return f"all ranks are in {where} and answer, for {waited:.0f} s: what they send each other or write takes so long."
