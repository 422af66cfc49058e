"""The faults of a simulated cluster: drawn from a seed, or given by a test."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from istmpi.units import in_seconds

DELAYS, STOPS, SLOW, KILLS = "delays", "stops", "slow", "kills"
KINDS = (DELAYS, STOPS, SLOW, KILLS)
"""The kinds of faults. All kinds except the last leave a run's result unchanged to the last bit."""

CALL_SECONDS = 1e-6
MESSAGE_SECONDS = 1e-5
BYTES_PER_SECOND = 1e9
EAGER_BYTES = 2**16
"""The most bytes, without a seed, of a message that does not wait at its sender for its
receiver."""


@dataclass(frozen=True)
class Stop:
    rank: int
    call: int
    seconds: float


@dataclass(frozen=True)
class Kill:
    """A rank that dies at its call number ``call``; if ``posted``, just after that call has posted
    its operation."""

    rank: int
    call: int
    posted: bool = False


@dataclass(frozen=True)
class Faults:
    """The faults of a simulated job. Without faults, all calls take equal time, and so do messages
    of equal size."""

    seed: int | None = None
    """The seed for the times of calls and messages, and for every choice that MPI leaves open."""
    stops: Sequence[Stop] = ()
    slow: Mapping[int, float] = field(default_factory=dict)
    kills: Sequence[Kill] = ()

    @classmethod
    def drawn(
        cls, seed: int, ranks: int, kinds: Sequence[str] = KINDS, calls: Sequence[int] | int = 1000
    ) -> "Faults":
        """Draw faults from a seed: delays, and at most one other kind. ``calls``: the number of
        each rank's calls."""
        draw = random.Random(f"faults {seed}")
        rank, place, size = draw.randrange(ranks), draw.random(), draw.random()
        call = 1 + int(place * (calls if isinstance(calls, int) else calls[rank]))
        kind = draw.choice([DELAYS, *kinds])
        return cls(
            seed,
            (Stop(rank, call, 10 ** (4 * size - 3)),) if kind == STOPS else (),
            {rank: 10 ** (3 * size)} if kind == SLOW else {},
            (Kill(rank, call, draw.random() < 0.5),) if kind == KILLS else (),
        )

    def __str__(self) -> str:
        faults = (
            [] if self.seed is None else [f"messages delayed and reordered by seed {self.seed}"]
        )
        faults += [
            f"rank {stop.rank} stopped for {in_seconds(stop.seconds)} at its call {stop.call}"
            for stop in self.stops
        ]
        faults += [f"rank {rank} slowed {factor:.3g} times" for rank, factor in self.slow.items()]
        faults += [f"rank {kill.rank} killed at its call {kill.call}" for kill in self.kills]
        return ", ".join(faults) or "none"


class Timing:
    def __init__(self, faults: Faults):
        self._draw = random.Random(f"weather {faults.seed}") if faults.seed is not None else None
        self._slow = faults.slow
        # Ranks are nearly in step or orders of magnitude apart: each finds errors that the other
        # does not.
        self._spread = self._draw.uniform(0.3, 3.0) if self._draw else 0.0

    def _times(self) -> float:
        return math.exp(self._draw.gauss(0.0, self._spread)) if self._draw else 1.0

    def call(self, rank: int) -> float:
        return CALL_SECONDS * self._times() * self._slow.get(rank, 1.0)

    def message(self, nbytes: int = 0) -> float:
        return MESSAGE_SECONDS * self._times() + nbytes / BYTES_PER_SECOND

    def noticing(self) -> float:
        return 100 * MESSAGE_SECONDS * self._times()

    def eager(self, nbytes: int) -> bool:
        return self._draw.random() < 0.5 if self._draw else nbytes <= EAGER_BYTES

    def lost(self) -> bool:
        return bool(self._draw) and self._draw.random() < 0.5
