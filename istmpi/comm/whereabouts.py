"""Where a rank is: what it does, and for whom it waits since when. Written by the threads that work, read by others.

The one place that knows of waits: every call of a `Communicator` that needs other ranks passes through `waits`, and so
does what waits for a file.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

SETTING_UP = "setting up"
BETWEEN_ROUNDS = "between rounds"
_ASLEEP = 5.0
"""Seconds between two looks of who watches: more, and the process was stopped, or the whole machine."""


@dataclass(frozen=True)
class Wait:
    """A call for which others are needed that are not all there."""

    call: str
    group: str
    """The name of the communicator."""
    number: int
    """Of the collective calls there; 0 for a call between two ranks."""
    ranks: tuple[int, ...]
    """Who is needed, by their numbers in the job."""
    since: float
    """By ``time.monotonic``."""
    trains: bool = True
    """It is the thread that trains that waits for others, not one in the background."""
    own: bool = False
    """For what the rank does itself, as all do at that place; who waits for others as well is missed for that."""


class Whereabouts:
    """One for all communicators of a rank. Its fields are read by a thread that watches, at any moment."""

    def __init__(self) -> None:
        self._trainer = threading.get_ident()
        self.met: dict[str, int] = {}
        """Collective calls that it has come to, by communicator."""
        self.waiting: dict[str, Wait] = {}
        """By communicator."""
        self.restart()

    def restart(self) -> None:
        """Nothing is known of rounds and phases any more: another run begins."""
        self.phase = SETTING_UP
        self.round: int | None = None
        """The round that it is in, from 1; None before the first."""
        self.local_step: int | None = None
        """Within a round's local steps, from 1."""
        self.slowest_round = 0.0
        """Seconds from one round's beginning to the next, evaluations and checkpoints included."""
        self.slowest_phase = "", 0.0
        """Of all phases that are over, waiting for the end of others' local steps left out."""
        self.moved = time.monotonic()
        """When it last did something else than before."""
        self.awake_since = self._round_began = self._phase_began = self.moved
        self._looked: float | None = None
        """When who watches did so last."""
        self._stepping = ""

    def looked(self, now: float) -> bool:
        """Who watches does so, as often as every second: whether the process was stopped meanwhile."""
        slept = self._slept(now)
        self._looked = now
        return slept

    def _slept(self, now: float) -> bool:
        slept = self._looked is not None and now - self._looked > _ASLEEP
        if slept:
            self.moved = self.awake_since = self._round_began = self._phase_began = now
        return slept

    @contextmanager
    def enter(self, phase: str) -> Iterator[None]:
        """As long as the block lasts it is in that phase; one inside another is taken out of it."""
        before = self._change(phase)
        try:
            yield
        finally:
            if phase == self._stepping:
                self.local_step = None
            self._change(before)

    def _change(self, phase: str) -> str:
        now, before = time.monotonic(), self.phase
        self._slept(now)
        took = now - self._phase_began
        if before not in (SETTING_UP, BETWEEN_ROUNDS, "wait") and took > self.slowest_phase[1]:
            self.slowest_phase = before, took
        self.phase, self.moved, self._phase_began = phase, now, now
        return before

    def step(self, local_step: int) -> None:
        """It begins that local step."""
        self.local_step, self._stepping, self.moved = local_step, self.phase, time.monotonic()

    def get_on(self) -> None:
        """It is through with a part of what it does for long, such as a batch of an evaluation."""
        self.moved = time.monotonic()

    def begin_round(self, round: int) -> None:
        """It begins that round."""
        self.moved = now = time.monotonic()
        self._slept(now)
        if self.phase == SETTING_UP:
            self.phase, self._phase_began = BETWEEN_ROUNDS, now
        if self.round is not None:
            self.slowest_round = max(self.slowest_round, now - self._round_began)
        self.round, self.local_step, self._round_began = round, None, now

    def meet(self, group: str) -> None:
        """It has come to a collective call."""
        self.met[group] = self.met.get(group, 0) + 1
        self.moved = time.monotonic()

    @contextmanager
    def waits(self, call: str, group: str, ranks: Sequence[int], collective: bool, own: bool = False) -> Iterator[None]:
        """As long as the block lasts others are waited for, or with ``own`` what the rank does itself."""
        number = self.met.get(group, 0) if collective else 0
        trains = threading.get_ident() == self._trainer and not own
        self.waiting[group] = Wait(call, group, number, tuple(ranks), time.monotonic(), trains, own)
        try:
            yield
        finally:
            del self.waiting[group]
            self.moved = time.monotonic()
