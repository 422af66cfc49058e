"""The whereabouts of a rank: what it does, and for whom it waits since when; the hang watch's thread reads it.

Every call of a `Communicator` that needs other ranks passes through `waits`, and so does what waits for a file.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SETTING_UP = "setting up"
BETWEEN_ROUNDS = "between rounds"
_ASLEEP = 5.0
"""Seconds between two looks of the watch: after more, the process was stopped, or the whole machine."""
_MANY_BYTES = 2**20
"""Bytes read or written between two looks that count as progress: a rank that moves much is not still."""


@dataclass(frozen=True)
class Wait:
    """A collective call for which others are needed that are not all there."""

    call: str
    group: str
    number: int
    ranks: tuple[int, ...]
    since: float
    trains: bool = True
    """The training thread waits for others, not one in the background."""
    for_itself: bool = False
    """The rank waits for what it does itself, as all do at that place."""


class Whereabouts:
    """Phase, round and waits of a rank, on all its communicators. The watch's thread reads the fields at any moment."""

    def __init__(self) -> None:
        self._trainer = threading.get_ident()
        self.arrivals: dict[str, int] = {}
        self.waiting: dict[str, Wait] = {}
        self._bytes = 0
        self.restart()

    def restart(self) -> None:
        self.phase = SETTING_UP
        self.round: int | None = None
        """The round that it is in, from 1; None before the first."""
        self.local_step: int | None = None
        self.slowest_round = 0.0
        """Seconds from one round's beginning to the next, evaluations and checkpoints included."""
        self.slowest_phase = "", 0.0
        """The longest of all phases that are over, but for those that wait for the end of others' local steps."""
        self.moved = time.monotonic()
        self.awake_since = self._round_began = self._phase_began = self.moved
        self._watched: float | None = None
        self._stepping = ""

    def watch(self, now: float) -> bool:
        slept = self._slept(now)
        self._watched = now
        return slept

    def _slept(self, now: float) -> bool:
        slept = self._watched is not None and now - self._watched > _ASLEEP
        if slept:
            self.moved = self.awake_since = self._round_began = self._phase_began = now
        return slept

    @contextmanager
    def enter(self, phase: str) -> Iterator[None]:
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
        self.local_step, self._stepping, self.moved = local_step, self.phase, time.monotonic()

    def heartbeat(self) -> None:
        self.moved = time.monotonic()

    def count_bytes(self) -> None:
        """Take much reading and writing for progress, where Linux counts it."""
        with suppress(OSError, ValueError, IndexError):
            now = bytes_of_others()
            if now - self._bytes > _MANY_BYTES:
                self._bytes = now
                self.heartbeat()

    def begin_round(self, round: int) -> None:
        self.moved = now = time.monotonic()
        self._slept(now)
        if self.phase == SETTING_UP:
            self.phase, self._phase_began = BETWEEN_ROUNDS, now
        if self.round is not None:
            self.slowest_round = max(self.slowest_round, now - self._round_began)
        self.round, self.local_step, self._round_began = round, None, now

    def arrive(self, group: str) -> None:
        self.arrivals[group] = self.arrivals.get(group, 0) + 1
        self.moved = time.monotonic()

    @contextmanager
    def waits(self, call: str, group: str, ranks: Sequence[int], for_itself: bool = False) -> Iterator[None]:
        number = self.arrivals.get(group, 0)
        trains = threading.get_ident() == self._trainer and not for_itself
        self.waiting[group] = Wait(call, group, number, tuple(ranks), time.monotonic(), trains, for_itself)
        try:
            yield
        finally:
            del self.waiting[group]
            self.moved = time.monotonic()


def bytes_of_others() -> int:
    """Bytes that this process has read and written, but for those of the thread that asks."""
    this_thread, all_threads = (
        [int(word) for word in Path(file).read_text().split()[1:4:2]]
        for file in ("/proc/thread-self/io", "/proc/self/io")
    )
    return sum(all_threads) - sum(this_thread)
