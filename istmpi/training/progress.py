"""Adds up the work of all ranks round by round, and makes the lines of metrics.jsonl."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from math import isnan
from statistics import median
from typing import TYPE_CHECKING

from istmpi.engine.shares import share_of

if TYPE_CHECKING:
    from istmpi.comm import Communicator
    from istmpi.comm.clock import Clock
    from istmpi.evaluation.evaluator import Score


SENDS_NOTHING = ("deal", "compute", "wait", "other")
"""Phases of a round without communication; all other phases count as exchange."""
WORTH_SAYING = 0.05
"""The least `Slowest.slower` and `Slowest.waited` for which a slow rank is reported."""


@dataclass(frozen=True)
class LastRound:
    """Measurements of the last completed round of training."""

    seconds: float
    """Seconds on the slowest rank, from the moment when all ranks have reached the round."""
    bytes: int
    examples: int
    phases: Mapping[str, float]
    """Seconds by phase: means over ranks, this rank's own for `save` before the round and
    `evaluate` after it."""
    compute: tuple[float, ...]
    wait: tuple[float, ...]
    """Each rank's seconds of waiting for other ranks after its local steps."""
    exchange: tuple[float, ...] = ()
    background: float = 0.0
    """Seconds of communication in the background, the mean over ranks; phases that wait for it
    count the time, too."""
    shares: tuple[float, ...] = ()
    """The share of each rank in this round, if shares change during the run; otherwise empty."""

    @staticmethod
    def of(
        seconds: float,
        nbytes: int,
        examples: int,
        phases: Sequence[Mapping[str, float]],
        saving: Mapping[str, float],
    ) -> LastRound:
        names = dict.fromkeys(name for of_rank in phases for name in of_rank)
        by_name = {name: tuple(of_rank.get(name, 0.0) for of_rank in phases) for name in names}
        mean = {name: sum(per_rank) / len(phases) for name, per_rank in by_name.items()}
        none = (0.0,) * len(phases)
        compute, wait = (by_name.get(name, none) for name in ("compute", "wait"))
        sending = [per_rank for name, per_rank in by_name.items() if name not in SENDS_NOTHING]
        exchange = tuple(map(sum, zip(*sending))) or none
        return LastRound(seconds, nbytes, examples, mean | saving, compute, wait, exchange)

    @property
    def rates(self) -> tuple[float, float] | None:
        return (
            (self.examples / self.seconds, self.bytes / self.seconds) if self.seconds > 0 else None
        )

    def followed_by(self, evaluating: Mapping[str, float]) -> LastRound:
        return replace(self, phases={**self.phases, **evaluating})


@dataclass(frozen=True)
class Counts:
    rounds: int
    examples: int
    seconds: float
    bytes: int
    loss: float


@dataclass(frozen=True)
class Slowest:
    rank: int
    host: str
    slower: float
    """The fraction by which the rank's local steps take longer than the median of the other
    ranks."""
    waited: float
    """The fraction of time that the other ranks, on average, wait for this rank."""

    def __str__(self) -> str:
        waited = f"the others waited {self.waited:.0%} of the time"
        return f"rank {self.rank}, {self.host}: {self.slower:.0%} slower, {waited}"


class Pace:
    """Sums over the rounds so far: the seconds of each rank's local steps, and of whole rounds."""

    def __init__(self) -> None:
        self._compute: list[float] = []
        self._seconds = 0.0

    def add(self, compute: Sequence[float], seconds: float) -> None:
        """Add a round if all ranks trained in it; a new number of ranks starts new sums."""
        if not all(compute):
            return
        if len(compute) != len(self._compute):
            self._compute, self._seconds = [0.0] * len(compute), 0.0
        self._compute = [before + now for before, now in zip(self._compute, compute, strict=True)]
        self._seconds += seconds

    def slowest(self, hosts: Sequence[str]) -> Slowest | None:
        if len(self._compute) < 2 or not self._seconds > 0:
            return None
        longest = max(self._compute)
        rank = self._compute.index(longest)
        others = self._compute[:rank] + self._compute[rank + 1 :]
        slower = longest / median(others) - 1
        waited = min((longest - sum(others) / len(others)) / self._seconds, 1.0)
        return (
            Slowest(rank, hosts[rank], slower, waited)
            if min(slower, waited) >= WORTH_SAYING
            else None
        )


class Tally:
    """The counts of a run, the same on every rank."""

    def __init__(self, communicator: Communicator, clock: Clock):
        self._communicator, self._clock = communicator, clock
        self.counts = Counts(0, 0, 0.0, 0, 0.0)
        """Counts of all ranks, up to the end of the last round."""
        self._began = 0.0, 0
        """The time when the current round began, and the bytes that this rank had sent before."""
        self.last_round: LastRound | None = None
        self.pace = Pace()
        self._before: dict[str, float] = {}
        self._beside = 0.0
        self._on_the_clock: dict[str, float] = {}
        self._saving: dict[str, float] = {}

    def restore(self, counts: Counts) -> None:
        self.counts, self.last_round, self.pace = counts, None, Pace()

    def begin(self) -> None:
        """Begin a round when all ranks have reached it. Collective."""
        self._saving = self.since_the_round("save")
        self._communicator.barrier()
        self._began = time.perf_counter(), self._communicator.traffic.bytes
        self._before, self._beside = dict(self._clock.seconds), self._clock.background

    def end(self, examples: int) -> LastRound:
        """End a round, in which this rank used ``examples`` examples; return its measurements.
        Collective."""
        start, sent = self._began
        took = time.perf_counter() - start
        phases, self._on_the_clock = self._clock.since(self._before), dict(self._clock.seconds)
        measured = took, self._communicator.traffic.bytes - sent, examples, phases
        per_rank = self._communicator.allgather((*measured, self._clock.background - self._beside))
        took, sent, examples, phases, background = zip(*per_rank, strict=True)
        last = LastRound.of(max(took), sum(sent), sum(examples), phases, self._saving)
        last = replace(last, background=sum(background) / len(background))
        self.pace.add(last.compute, last.seconds)
        return last

    def count(self, last: LastRound, rounds: int, loss: float) -> None:
        before, self.last_round = self.counts, last
        sums = (
            before.examples + last.examples,
            before.seconds + last.seconds,
            before.bytes + last.bytes,
        )
        self.counts = Counts(rounds, *sums, loss)

    def since_the_round(self, phase: str) -> dict[str, float]:
        return {
            name: seconds
            for name, seconds in self._clock.since(self._on_the_clock).items()
            if name == phase
        }


@dataclass(frozen=True)
class Progress:
    """The state of a run after a round; its seconds and bytes do not include evaluations."""

    round: int
    local_steps: int
    """The local steps of a rank that takes part in every round."""
    examples: int
    seconds: float
    bytes: int
    loss: float
    """Mean training loss of the round over ranks and local steps."""
    learning_rate: float
    score: Score | None = None
    score_name: str = ""
    ranks: int = 1
    last_round: LastRound | None = None
    time: float = field(default_factory=time.time)
    validation: Score | None = None
    """The score on the validation split, if the run uses one; the test split is then scored only at
    the end."""
    slowest: Slowest | None = None
    """The rank for which other ranks waited in this job; None if the waiting was below
    `WORTH_SAYING`."""
    evaluating: float = 0.0
    """The fraction of this rank's time in this job that it spent on evaluations."""

    def record(self) -> dict[str, str | int | float]:
        line = {
            "time": datetime.fromtimestamp(self.time, timezone.utc).isoformat(
                timespec="milliseconds"
            )
        }
        line |= {
            name: getattr(self, name)
            for name in ("round", "local_steps", "examples", "seconds", "bytes", "loss")
        }
        line |= {name: getattr(self, name) for name in ("learning_rate", "ranks", "score_name")}
        line["loss"] = None if isnan(self.loss) else self.loss
        line |= self.scores()
        if self.last_round:
            line |= _last_round(self.last_round)
        return line

    def scores(self) -> dict[str, str | int | float]:
        line = self.score.record() if self.score else {}
        if self.validation:
            line |= {
                f"validation_{name}": value for name, value in self.validation.record("").items()
            }
        return line


def _last_round(last: LastRound) -> dict[str, float]:
    line = {"round_seconds": last.seconds, "round_bytes": last.bytes}
    if last.rates:
        line |= dict(zip(("examples_per_second", "bytes_per_second"), last.rates))
    line |= {
        f"{phase.replace('-', '_')}_seconds": seconds for phase, seconds in last.phases.items()
    }
    if last.background:
        line["background_seconds"] = last.background
    for phase in ("compute", "wait", "exchange"):
        line |= {
            f"rank{rank}_{phase}_seconds": seconds
            for rank, seconds in enumerate(getattr(last, phase))
        }
    # More digits than a clock has would make the file a third longer.
    line = {
        name: round(value, 6) if isinstance(value, float) else value for name, value in line.items()
    }
    return line | {share_of(rank): share for rank, share in enumerate(last.shares)}
