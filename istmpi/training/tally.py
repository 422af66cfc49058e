"""Adds up the work of all ranks of a run: rounds, seconds, bytes and examples, and what the last round took."""

from __future__ import annotations

import time
from dataclasses import replace

from istmpi.comm import Communicator
from istmpi.comm.clock import Clock
from istmpi.training.progress import Counts, LastRound, Pace


class Tally:
    """The counts of a run, the same on every rank."""

    def __init__(self, communicator: Communicator, clock: Clock):
        self._communicator, self._clock = communicator, clock
        self.counts = Counts(0, 0, 0, 0.0, 0, 0.0)
        """Counts of all ranks, as of the last exchange."""
        self._began = 0.0, 0
        """The time when the present round began, and this rank's sent bytes until then."""
        self.last_round: LastRound | None = None
        self.pace = Pace()
        self._before: dict[str, float] = {}
        self._beside = 0.0
        self._on_the_clock: dict[str, float] = {}
        self._saving: dict[str, float] = {}

    def go_on_from(self, counts: Counts) -> None:
        """Continue from these counts, as if no round had been measured."""
        self.counts, self.last_round, self.pace = counts, None, Pace()

    def begin(self) -> None:
        """Begin a round when all ranks have come to it. Collective."""
        self._saving = self.since_the_round("save")
        self._communicator.barrier()
        self._began = time.perf_counter(), self._communicator.traffic.bytes
        self._before, self._beside = dict(self._clock.seconds), self._clock.background

    def end(self, examples: int) -> LastRound:
        """Return what the round took: as long as on the slowest rank; this rank saw ``examples`` in it. Collective."""
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
        """Count a round that has ended, after which so many ``rounds`` are done."""
        before, self.last_round = self.counts, last
        sums = before.examples + last.examples, before.seconds + last.seconds, before.bytes + last.bytes
        self.counts = Counts(rounds, 0, *sums, loss)

    def since_the_round(self, phase: str) -> dict[str, float]:
        """Return this rank's seconds in a phase since the last round, where it was in it."""
        return {name: seconds for name, seconds in self._clock.since(self._on_the_clock).items() if name == phase}
