"""The faults of a simulated cluster: drawn from a seed, or given by a test."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from istmpi.units import in_seconds

DELAYS = "delays"
STOPS = "stops"
SLOW = "slow"
KILLS = "kills"
KINDS = (DELAYS, STOPS, SLOW, KILLS)
"""The kinds of faults. All kinds except the last leave a run's result unchanged to the last bit."""

CALL_SECONDS = 1e-6
MESSAGE_SECONDS = 1e-5
BYTES_PER_SECOND = 1e9
EAGER_BYTES = 2**16
"""The most bytes of a message that does not wait for its receiver, without a seed."""


@dataclass(frozen=True)
class Stop:
    rank: int
    call: int
    seconds: float


@dataclass(frozen=True)
class Kill:
    """The death of a rank at its call number ``call``.

    If ``posted``, it dies just after that call has posted its operation.
    """

    rank: int
    call: int
    posted: bool = False


@dataclass(frozen=True)
class Faults:
    """The faults of a simulated job.

    Without faults, all calls take equal time, and so do messages of equal size.
    """

    seed: int | None = None
    """The seed for the times of calls and messages, and for every choice that MPI leaves open."""
    stops: Sequence[Stop] = ()
    slow: Mapping[int, float] = field(default_factory=dict)
    kills: Sequence[Kill] = ()

    @classmethod
    def draw(
        cls, seed: int, ranks: int, kinds: Sequence[str] = KINDS, calls: Sequence[int] | int = 1000
    ) -> "Faults":
        """Draw faults from a seed: delays, and at most one other kind.

        ``calls``: the number of each rank's calls.
        """
        # The order of the draws decides what a seed means: a recorded seed must repeat its faults.
        generator = random.Random(f"faults {seed}")
        rank = generator.randrange(ranks)
        place = generator.random()
        size = generator.random()
        kind = generator.choice([DELAYS, *kinds])
        calls_of_rank = calls if isinstance(calls, int) else calls[rank]
        call = 1 + int(place * calls_of_rank)
        if kind == STOPS:
            return cls(seed, stops=(Stop(rank, call, seconds=10 ** (4 * size - 3)),))
        if kind == SLOW:
            return cls(seed, slow={rank: 10 ** (3 * size)})
        if kind == KILLS:
            return cls(seed, kills=(Kill(rank, call, posted=generator.random() < 0.5),))
        return cls(seed)

    def __str__(self) -> str:
        faults = []
        if self.seed is not None:
            faults.append(f"messages delayed and reordered by seed {self.seed}")
        for stop in self.stops:
            seconds = in_seconds(stop.seconds)
            faults.append(f"rank {stop.rank} stopped for {seconds} at its call {stop.call}")
        for rank, factor in self.slow.items():
            faults.append(f"rank {rank} slowed {factor:.3g} times")
        for kill in self.kills:
            faults.append(f"rank {kill.rank} killed at its call {kill.call}")
        return ", ".join(faults) or "none"


class Timing:
    """The times of calls and messages, and the choices that MPI leaves open."""

    def __init__(self, faults: Faults):
        self._slow = faults.slow
        self._generator: random.Random | None = None
        self._spread = 0.0
        if faults.seed is not None:
            self._generator = random.Random(f"weather {faults.seed}")
            # Ranks are nearly in step or orders of magnitude apart: each finds errors that the
            # other does not.
            self._spread = self._generator.uniform(0.3, 3.0)

    def _draw_factor(self) -> float:
        if self._generator is None:
            return 1.0
        return math.exp(self._generator.gauss(0.0, self._spread))

    def call_seconds(self, rank: int) -> float:
        return CALL_SECONDS * self._draw_factor() * self._slow.get(rank, 1.0)

    def message_seconds(self, nbytes: int = 0) -> float:
        return MESSAGE_SECONDS * self._draw_factor() + nbytes / BYTES_PER_SECOND

    def notice_seconds(self) -> float:
        """Return the time after which the launcher ends a job that lost a rank."""
        return 100 * MESSAGE_SECONDS * self._draw_factor()

    def is_eager(self, nbytes: int) -> bool:
        """Choose whether a send ends before its message is received."""
        if self._generator is None:
            return nbytes <= EAGER_BYTES
        return self._generator.random() < 0.5

    def is_lost(self) -> bool:
        """Choose whether something that a killed rank sent is lost."""
        return self._generator is not None and self._generator.random() < 0.5
