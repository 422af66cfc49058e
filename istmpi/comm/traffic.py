"""The values that a rank hands to MPI: each call is counted, and reported to followers."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sent:
    """A call that hands values to MPI; times are those of ``time.perf_counter``."""

    call: str
    bytes: int
    began: float
    ended: float


@dataclass
class Traffic:
    bytes: int = 0
    calls: int = 0
    followers: list[Callable[[Sent], None]] = field(default_factory=list)
    """Called with every call."""

    def add(self, nbytes: int, call: str, began: float, ended: float | None = None) -> None:
        """Count a call that has ended, by default just now."""
        self.bytes += nbytes
        self.calls += 1
        for follower in self.followers:
            follower(Sent(call, nbytes, began, ended or time.perf_counter()))
