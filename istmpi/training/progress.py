"""Adds up the work of all ranks round by round, and makes the lines of metrics.jsonl."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from math import isnan
from statistics import median
from typing import TYPE_CHECKING

from istmpi.comm.ledger import ROUNDS
from istmpi.engine.shares import name_share

if TYPE_CHECKING:
    from istmpi.checkpoint.format import Header
    from istmpi.comm import Communicator
    from istmpi.comm.clock import Clock
    from istmpi.evaluation.evaluator import Score


Line = dict[str, str | int | float | None]
"""A line of metrics.jsonl."""
SENDS_NOTHING = ("deal", "compute", "wait", "other")
"""Phases of a round without communication; all other phases count as exchange."""
WORTH_SAYING = 0.05
"""The least `Slowest.slower` and `Slowest.waited` for which a slow rank is reported."""
LEAST_SECONDS = 5.0
"""Seconds of local steps from which on a slow rank is reported."""


@dataclass(frozen=True)
class LastRound:
    """Measurements of the last completed round of training."""

    seconds: float
    """Seconds from the moment when all ranks have reached the round, or from the end of the last
    one: a mean over ranks, so that rounds which follow each other add up to the time that has
    passed. Over a long distance, another rank is the last one in each round."""
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
    sent_elsewhere: Mapping[str, int] = field(default_factory=dict)
    """Bytes of all ranks outside rounds, by purpose, from the job's start to this round's end."""
    shares: tuple[float, ...] = ()
    """The share of each rank in this round, if shares change during the run; otherwise empty."""

    @staticmethod
    def from_ranks(
        seconds: float,
        nbytes: int,
        examples: int,
        phases: Sequence[Mapping[str, float]],
        saving: Mapping[str, float],
    ) -> LastRound:
        """Return the measurements of a round from each rank's seconds by phase; ``saving`` are this
        rank's before the round."""
        ranks = len(phases)
        by_phase: dict[str, list[float]] = {}
        for rank, seconds_of_rank in enumerate(phases):
            for phase, spent in seconds_of_rank.items():
                by_phase.setdefault(phase, [0.0] * ranks)[rank] = spent
        means = {phase: sum(by_rank) / ranks for phase, by_rank in by_phase.items()}
        exchange = [0.0] * ranks
        # Each rank's seconds in all phases that communicate.
        for phase, by_rank in by_phase.items():
            if phase not in SENDS_NOTHING:
                exchange = [before + spent for before, spent in zip(exchange, by_rank, strict=True)]
        nothing = [0.0] * ranks
        return LastRound(
            seconds=seconds,
            bytes=nbytes,
            examples=examples,
            phases={**means, **saving},
            compute=tuple(by_phase.get("compute", nothing)),
            wait=tuple(by_phase.get("wait", nothing)),
            exchange=tuple(exchange),
        )

    @property
    def rates(self) -> tuple[float, float] | None:
        """Examples and bytes a second; None if no time passed on the round's clock."""
        if self.seconds <= 0:
            return None
        return self.examples / self.seconds, self.bytes / self.seconds

    def with_phases(self, phases: Mapping[str, float]) -> LastRound:
        return replace(self, phases={**self.phases, **phases})


@dataclass(frozen=True)
class Counts:
    """Sums over all ranks and rounds, and the loss of the last round."""

    rounds: int = 0
    examples: int = 0
    seconds: float = 0.0
    bytes: int = 0
    loss: float = 0.0

    @staticmethod
    def from_header(header: Header) -> Counts:
        return Counts(
            rounds=header.round,
            examples=header.examples,
            seconds=header.seconds,
            bytes=header.bytes,
            loss=header.loss,
        )


@dataclass(frozen=True)
class Slowest:
    """The rank whose local steps take longest, and what that costs."""

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
        # A rank that fedavg does not draw would seem to be the fastest.
        if not all(compute):
            return
        if len(compute) != len(self._compute):
            self._compute = [0.0] * len(compute)
            self._seconds = 0.0
        self._compute = [before + now for before, now in zip(self._compute, compute, strict=True)]
        self._seconds += seconds

    def slowest(self, hosts: Sequence[str]) -> Slowest | None:
        if len(self._compute) < 2 or not self._seconds > 0:
            return None
        # All wait for the rank whose steps take longest.
        longest = max(self._compute)
        # Imports and other programs make a rank slow for a second or two.
        if longest < LEAST_SECONDS:
            return None
        rank = self._compute.index(longest)
        others = self._compute[:rank] + self._compute[rank + 1 :]
        slower = longest / median(others) - 1
        waited = min((longest - sum(others) / len(others)) / self._seconds, 1.0)
        if min(slower, waited) < WORTH_SAYING:
            return None
        return Slowest(rank, hosts[rank], slower, waited)


MEASURED = 1024
"""Bytes for a rank's measurements of a round, so that they travel in one message."""


class Tally:
    """The counts of a run, the same on every rank."""

    def __init__(self, communicator: Communicator, clock: Clock):
        self._communicator = communicator
        self._clock = clock
        self.counts = Counts()
        """Counts of all ranks, up to the end of the last round."""
        self._began = 0.0
        """The time when the current round began."""
        self._ended: float | None = None
        """The time when the last round ended; None if other work has followed."""
        self._sent_before = 0
        """The bytes that this rank had sent before the current round."""
        self.last_round: LastRound | None = None
        self.pace = Pace()
        self._before: dict[str, float] = {}
        """The clock's seconds by phase when the current round began."""
        self._beside = 0.0
        """The seconds of communication in the background when the current round began."""
        self._on_the_clock: dict[str, float] = {}
        """The clock's seconds by phase when the last round ended."""
        self._saving: dict[str, float] = {}
        """The seconds of `save` between the last round and the current one."""

    def restore(self, counts: Counts) -> None:
        self.counts = counts
        self.last_round = None
        self.pace = Pace()

    def begin(self, meet: Callable[[], bool] = lambda: False) -> None:
        """Begin a round: at the end of the last one, or when all ranks have reached it. Collective.

        Ranks wait for each other only after other work, because a wait costs a round trip.
        ``meet`` is called then, and returns True if it was such a wait.
        """
        self._saving = self.since_the_round("save")
        self._communicator.ledger.purpose = ROUNDS
        if self._ended is None:
            # Otherwise a rank's lateness in other work would count as exchange.
            if not meet():
                self._communicator.barrier()
            self._began = time.perf_counter()
            self._before = dict(self._clock.seconds)
        else:
            # So the rounds' seconds have the exchange of measurements, too.
            self._began = self._ended
            self._before = self._on_the_clock
        self._sent_before = self._communicator.traffic.bytes
        self._beside = self._clock.background
        self._ended = None

    def part(self) -> None:
        """Let the next round begin when all ranks have reached it. Call it on all ranks."""
        self._ended = None

    def end(self, examples: int) -> LastRound:
        """End a round, in which this rank used ``examples`` examples; return its measurements.
        Collective."""
        self._ended = time.perf_counter()
        took = self._ended - self._began
        phases = self._clock.since(self._before)
        self._on_the_clock = dict(self._clock.seconds)
        sent = self._communicator.traffic.bytes - self._sent_before
        background = self._clock.background - self._beside
        ledger = self._communicator.ledger
        purposes = [purpose for purpose in ledger.sent if purpose != ROUNDS]
        elsewhere = tuple(ledger.sent[purpose].bytes for purpose in purposes)
        with self._clock("other"):
            by_rank = self._communicator.allgather(
                (took, sent, examples, phases, background, elsewhere), slot=MEASURED
            )
        (
            took_by_rank,
            sent_by_rank,
            examples_by_rank,
            phases_by_rank,
            background_by_rank,
            elsewhere_by_rank,
        ) = zip(*by_rank, strict=True)
        last = LastRound.from_ranks(
            sum(took_by_rank) / len(by_rank),
            sum(sent_by_rank),
            sum(examples_by_rank),
            phases_by_rank,
            self._saving,
        )
        totals = [sum(column) for column in zip(*elsewhere_by_rank, strict=True)]
        last = replace(
            last,
            background=sum(background_by_rank) / len(by_rank),
            sent_elsewhere=dict(zip(purposes, totals, strict=True)),
        )
        self.pace.add(last.compute, last.seconds)
        return last

    def count(self, last: LastRound, rounds: int, loss: float) -> None:
        self.last_round = last
        before = self.counts
        self.counts = Counts(
            rounds=rounds,
            examples=before.examples + last.examples,
            seconds=before.seconds + last.seconds,
            bytes=before.bytes + last.bytes,
            loss=loss,
        )

    def since_the_round(self, phase: str) -> dict[str, float]:
        """Return this rank's seconds of a phase since the last round; empty if there are none."""
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

    def record(self) -> Line:
        """Return the line of metrics.jsonl."""
        moment = datetime.fromtimestamp(self.time, timezone.utc)
        line: Line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "round": self.round,
            "local_steps": self.local_steps,
            "examples": self.examples,
            "seconds": self.seconds,
            "bytes": self.bytes,
            "loss": record_loss(self.loss),
            "learning_rate": self.learning_rate,
            "ranks": self.ranks,
            "score_name": self.score_name,
        }
        line |= self.scores()
        if self.last_round:
            line |= _record_round(self.last_round)
        return line

    def scores(self) -> Line:
        """Return the scores in the line of metrics.jsonl."""
        line: Line = {}
        if self.score:
            line |= self.score.record()
        if self.validation:
            for name, value in self.validation.record("").items():
                line[f"validation_{name}"] = value
        return line


def record_loss(loss: float) -> float | None:
    """Return a training loss as metrics.jsonl has it: JSON has no NaN."""
    if isnan(loss):
        return None
    return loss


def record_elsewhere(sent: Mapping[str, int]) -> dict[str, float]:
    """Return the bytes outside rounds, which are given by purpose, in the line of metrics.jsonl."""
    return {f"{purpose}_bytes": nbytes for purpose, nbytes in sent.items()}


def _record_round(last: LastRound) -> dict[str, float]:
    line: dict[str, float] = {"round_seconds": last.seconds, "round_bytes": last.bytes}
    if last.rates:
        line["examples_per_second"], line["bytes_per_second"] = last.rates
    for phase, seconds in last.phases.items():
        line[f"{phase.replace('-', '_')}_seconds"] = seconds
    line |= record_elsewhere(last.sent_elsewhere)
    if last.background:
        line["background_seconds"] = last.background
    by_phase = {"compute": last.compute, "wait": last.wait, "exchange": last.exchange}
    for phase, seconds_by_rank in by_phase.items():
        for rank, seconds in enumerate(seconds_by_rank):
            line[f"rank{rank}_{phase}_seconds"] = seconds
    # More digits than a clock has would make the file a third longer.
    for name, value in line.items():
        line[name] = round(value, 6)
    for rank, share in enumerate(last.shares):
        line[name_share(rank)] = share
    return line
