"""Finds the rank that holds up the others, and what that costs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

WORTH_SAYING = 0.05
"""A rank is named where its local steps take so much longer than the others', and they wait so much of the time."""


@dataclass(frozen=True)
class Slowest:
    """The rank that holds up the others."""

    rank: int
    host: str
    slower: float
    """The fraction by which its local steps take longer than the median of the others'."""
    waited: float
    """The fraction of the time that the others wait for it, the mean over them."""

    def __str__(self) -> str:
        return (
            f"rank {self.rank}, {self.host}: {self.slower:.0%} slower, the others waited {self.waited:.0%} of the time"
        )


class Pace:
    """The ranks' seconds of local steps so far, and the seconds of all of these rounds."""

    def __init__(self) -> None:
        self._compute: list[float] = []
        self._seconds = 0.0

    def add(self, compute: Sequence[float], seconds: float) -> None:
        """Another round; one in which a rank did not train says nothing of who is slow."""
        if not all(compute):
            return
        if len(compute) != len(self._compute):
            self._compute, self._seconds = [0.0] * len(compute), 0.0
        self._compute = [before + now for before, now in zip(self._compute, compute, strict=True)]
        self._seconds += seconds

    def slowest(self, hosts: Sequence[str]) -> Slowest | None:
        """The rank that holds up the others, each on one of these hosts; None where none does so noticeably."""
        if len(self._compute) < 2 or not self._seconds > 0:
            return None
        longest = max(self._compute)
        rank = self._compute.index(longest)
        others = self._compute[:rank] + self._compute[rank + 1 :]
        slower = longest / median(others) - 1
        waited = min((longest - sum(others) / len(others)) / self._seconds, 1.0)
        return Slowest(rank, hosts[rank], slower, waited) if min(slower, waited) >= WORTH_SAYING else None
