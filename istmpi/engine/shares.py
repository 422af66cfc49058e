"""Shares: the relative amounts that ranks are dealt from round to round, which may follow measured times.

As in AdapTrain a rank's next share is its present one divided by the square root of the seconds that its local steps
take, scaled to a sum of 1. What a subnet costs grows with its share at least a little and at most with its square, so
that this approaches equal times from one side: it does not oscillate.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import median

AUTO = "auto"
"""The setting for shares that follow the measured times."""
ROUNDS = 3
"""Rounds with the present shares before they may change; the median of their seconds counts, rank by rank."""
CHANGE = 0.05
"""The least relative change of a share for which shares change."""
LEAST = 0.1
"""The least share of a rank relative to an equal one: a few units would be worth nothing."""
LEAD = 2
"""Rounds from a measured one to the first that may have other shares: the deal in between is drawn already."""


def following(shares: Sequence[float], seconds: Sequence[float]) -> tuple[float, ...]:
    """The shares that follow from these and the ranks' seconds of local steps with them; their sum is 1."""
    next_shares = [share / sqrt(took) for share, took in zip(shares, seconds, strict=True)]
    total, least = sum(next_shares), LEAST / len(next_shares)
    next_shares = [max(share / total, least) for share in next_shares]
    total = sum(next_shares)
    # Few digits, for they stand in every line of the metrics: who reads them there has the very same shares.
    return tuple(float(f"{share / total:.6g}") for share in next_shares)


def equal(ranks: int) -> tuple[float, ...]:
    return (1 / ranks,) * ranks


def share_of(rank: int) -> str:
    return f"rank{rank}_share"


class Shares:
    """The shares of every round of a run on so many ranks: those of its settings, or those of a log.

    ``log``: shares by the first round with them; before that they are equal. With ``follows`` it grows by itself.
    """

    def __init__(
        self,
        ranks: int,
        given: Sequence[float] | None = None,
        log: Mapping[int, Sequence[float]] | None = None,
        follows: bool = False,
    ):
        self.ranks, self.follows, self.changing = ranks, follows, follows or log is not None
        self._given = given
        self._log = {round: tuple(shares) for round, shares in sorted((log or {}).items())}
        self._seconds: list[Sequence[float]] = []

    def of(self, round: int) -> Sequence[float] | None:
        """The shares of a round; None for equal ones."""
        return next((shares for first, shares in reversed(self._log.items()) if first <= round), self._given)

    def known(self, round: int) -> dict[int, Sequence[float]]:
        """The log of the rounds before, at and after one: the last trained, and all decided by then."""
        rounds = range(max(round - 1, 0), round + 2)
        log: dict[int, Sequence[float]] = {}
        if self.changing and any(map(self.of, rounds)):
            for number in rounds:
                shares = self.of(number) or equal(self.ranks)
                if shares != next(reversed(log.values()), None):
                    log[number] = shares
        return log

    def measured(self, round: int, seconds: Sequence[float]) -> tuple[float, ...] | None:
        """Take the ranks' seconds of local steps of a round that is done; return shares for `change` if they should."""
        if not self.follows or self.ranks == 1 or max(self._log, default=0) > round or not all(seconds):
            return None
        self._seconds = [*self._seconds, seconds][-ROUNDS:]
        if len(self._seconds) < ROUNDS:
            return None
        present = self.of(round) or equal(self.ranks)
        next_shares = following(present, [median(of_rank) for of_rank in zip(*self._seconds, strict=True)])
        change = max(abs(new / old - 1) for new, old in zip(next_shares, present, strict=True))
        return next_shares if change > CHANGE else None

    def go_on(self, log: Mapping[int, Sequence[float]], ranks: int) -> None:
        """Take over the log of so many ranks; shares begin anew on another number of ranks, and a given log stays."""
        if self.follows and ranks == self.ranks:
            self._log = dict(sorted(log.items()))

    def change(self, round: int, shares: Sequence[float]) -> None:
        self._log[round + LEAD] = tuple(shares)
        self._seconds = []
