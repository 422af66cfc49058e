"""The whereabouts of a rank: its phase, the ranks it waits for, and since when.

The hang watch's thread reads them. A transfer of a `Communicator` that must wait for ranks passes
through `waits`, and so do waits for checkpoints.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SETTING_UP = "setting up"
BETWEEN_ROUNDS = "between rounds"
_ASLEEP = 5.0
"""The longest time between two looks of the watch. A longer gap means that the process or machine
was stopped."""
_MANY_BYTES = 2**20
"""The bytes that a rank must read or write to make progress, without which it counts as still."""


@dataclass(frozen=True)
class Wait:
    """A collective call in which this rank waits for other ranks, or for its own work.

    It waits for its own work if ``for_itself`` is True.
    """

    call: str
    group: str
    number: int
    ranks: tuple[int, ...]
    since: float
    trains: bool = True
    """True if the training thread waits for other ranks; False for a background thread and for
    ``for_itself``."""
    for_itself: bool = False
    """True if each rank waits for its own work in this call, such as a write, and not for other
    ranks."""


class Whereabouts:
    """Phase, round and waits of a rank, on all its communicators.

    The watch's thread reads the fields at any moment.
    """

    def __init__(self) -> None:
        # Waits of other threads, which save or send in the background, hold up no training.
        self._trainer = threading.get_ident()
        # decision 20: counts, because a message for each call would slow down what works.
        self.arrivals: dict[str, int] = {}
        self.waiting: dict[str, Wait] = {}
        self.names: Mapping[int, str] = {}
        """The names of processes in messages of a job of replica groups; empty without groups."""
        self._bytes = 0
        self.restart()

    def restart(self) -> None:
        self.phase = SETTING_UP
        self.round: int | None = None
        """The current round, counted from 1; None before the first."""
        self.local_step: int | None = None
        self.slowest_round = 0.0
        """Seconds of the longest round so far, evaluations and checkpoints included."""
        self.slowest_phase = "", 0.0
        """The longest finished phase of a round and its seconds; ``wait``, for other ranks' steps,
        does not count."""
        self.moved = time.monotonic()
        self.awake_since = self._round_began = self._phase_began = self.moved
        self._watched: float | None = None
        self._stepping = ""

    def name(self, rank: int) -> str:
        """Return what messages call a rank of the job."""
        return self.names.get(rank, f"rank {rank}")

    def watch(self, now: float) -> bool:
        """Note a look of the watch; return True if this process was stopped since its last look."""
        slept = self._note_sleep(now)
        self._watched = now
        return slept

    def _note_sleep(self, now: float) -> bool:
        # Both threads ask: whichever runs first after a stop must not count the stopped time.
        slept = self._watched is not None and now - self._watched > _ASLEEP
        if slept:
            self.moved = self.awake_since = self._round_began = self._phase_began = now
        return slept

    @contextmanager
    def enter(self, phase: str) -> Iterator[None]:
        """Set the phase inside the block; the earlier phase returns after it."""
        before = self._change(phase)
        try:
            yield
        finally:
            if phase == self._stepping:
                self.local_step = None
            self._change(before)

    def _change(self, phase: str) -> str:
        """Set the phase, and return the earlier one."""
        now = time.monotonic()
        before = self.phase
        self._note_sleep(now)
        seconds = now - self._phase_began
        # "wait" is the time of other ranks' steps, which says nothing about this rank.
        if before not in (SETTING_UP, BETWEEN_ROUNDS, "wait") and seconds > self.slowest_phase[1]:
            self.slowest_phase = before, seconds
        self.phase = phase
        self.moved = self._phase_began = now
        return before

    def step(self, local_step: int) -> None:
        self.local_step = local_step
        self._stepping = self.phase
        self.moved = time.monotonic()

    def heartbeat(self) -> None:
        """Note progress inside a phase."""
        self.moved = time.monotonic()

    def count_bytes(self) -> None:
        """Note progress if this process has read or written many bytes, by Linux's count."""
        with suppress(OSError, ValueError, IndexError):
            now = bytes_of_others()
            if now - self._bytes > _MANY_BYTES:
                self._bytes = now
                self.heartbeat()

    def begin_round(self, round: int) -> None:
        """Note that a round begins, and how long the one before took."""
        self.moved = now = time.monotonic()
        self._note_sleep(now)
        if self.phase == SETTING_UP:
            self.phase = BETWEEN_ROUNDS
            self._phase_began = now
        if self.round is not None:
            self.slowest_round = max(self.slowest_round, now - self._round_began)
        self.round = round
        self.local_step = None
        self._round_began = now

    def arrive(self, group: str) -> None:
        """Count a collective call that this rank has reached on the communicator ``group``."""
        self.arrivals[group] = self.arrivals.get(group, 0) + 1
        self.moved = time.monotonic()

    @contextmanager
    def waits(
        self, call: str, group: str, ranks: Sequence[int], for_itself: bool = False
    ) -> Iterator[None]:
        number = self.arrivals.get(group, 0)
        trains = threading.get_ident() == self._trainer and not for_itself
        # A backward pass, which waits for the members of its group, may have waits of its own.
        outer = self.waiting.get(group)
        self.waiting[group] = Wait(
            call=call,
            group=group,
            number=number,
            ranks=tuple(ranks),
            since=time.monotonic(),
            trains=trains,
            for_itself=for_itself,
        )
        try:
            yield
        finally:
            if outer:
                self.waiting[group] = outer
            else:
                del self.waiting[group]
            # The end of a wait is progress, although other ranks made it.
            self.moved = time.monotonic()


def bytes_of_others() -> int:
    """Return the bytes that other threads of this process have read and written."""
    of_this_thread = _read_bytes("/proc/thread-self/io")
    return _read_bytes("/proc/self/io") - of_this_thread


def _read_bytes(file: str) -> int:
    """Return the sum of a file's first two lines: ``rchar: BYTES`` and ``wchar: BYTES``."""
    _, read, _, written, *_ = Path(file).read_text().split()
    return int(read) + int(written)
