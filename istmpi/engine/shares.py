"""Shares: the relative sizes of the ranks' subnets in each round; they may follow measured times.

As in AdapTrain, a rank's next share is its present share divided by the square root of the seconds
of its local steps. All shares are scaled to a sum of about 1. Times approach each other without
oscillation, because a subnet's cost grows at most with the square of its share.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import median

AUTO = "auto"
"""The value of method.shares for shares that follow measured times."""
ROUNDS = 3
"""The least number of rounds without a change, and the number of last rounds whose median seconds
count."""
CHANGE = 0.05
"""The relative change of one share above which all shares change."""
LEAST = 0.1
"""The approximate least share, as a fraction of an equal share: a subnet of few units would be
useless."""
LEAD = 2
"""Rounds from a measured round to the first round with new shares: the deal between is drawn
already."""


def balance_shares(shares: Sequence[float], seconds: Sequence[float]) -> tuple[float, ...]:
    """Return the shares after ``shares``, with which the ranks' local steps took ``seconds``; their
    sum is about 1."""
    next_shares = [share / sqrt(took) for share, took in zip(shares, seconds, strict=True)]
    total = sum(next_shares)
    least = LEAST / len(next_shares)
    next_shares = [max(share / total, least) for share in next_shares]
    # Raised to the least share, they may add up to more than 1.
    total = sum(next_shares)
    # Every line of the metrics has the shares, so they have few digits; a reader gets exactly the
    # same shares.
    return tuple(float(f"{share / total:.6g}") for share in next_shares)


def equal(ranks: int) -> tuple[float, ...]:
    return (1 / ranks,) * ranks


def name_share(rank: int) -> str:
    return f"rank{rank}_share"


class Shares:
    """The shares of every round of a run, from the run's settings or from a log.

    ``log``: shares by the first round that has them. Earlier rounds have the ``given`` shares, by
    default equal shares.
    """

    def __init__(
        self,
        ranks: int,
        given: Sequence[float] | None = None,
        log: Mapping[int, Sequence[float]] | None = None,
        follows: bool = False,
    ):
        self.ranks = ranks
        self.follows = follows
        self.changing = follows or log is not None
        self._given = given
        self._log = {round: tuple(shares) for round, shares in sorted((log or {}).items())}
        self._seconds: list[Sequence[float]] = []

    def of(self, round: int) -> Sequence[float] | None:
        """Return the shares of a round; None for equal shares."""
        for first, shares in reversed(self._log.items()):
            if first <= round:
                return shares
        return self._given

    def known(self, round: int) -> dict[int, Sequence[float]]:
        """Return the log of the rounds ``round - 1`` to ``round + 1``; empty if shares are fixed or
        still equal."""
        rounds = range(max(round - 1, 0), round + 2)
        log: dict[int, Sequence[float]] = {}
        if self.changing and any(map(self.of, rounds)):
            for number in rounds:
                shares = self.of(number) or equal(self.ranks)
                # A round without an entry has the shares of the round before.
                if shares != next(reversed(log.values()), None):
                    log[number] = shares
        return log

    def measured(self, round: int, seconds: Sequence[float]) -> tuple[float, ...] | None:
        """Note the ranks' seconds of a round's local steps; return new shares for `change`, or None
        to keep the old."""
        if not self.follows or self.ranks == 1 or not all(seconds):
            return None
        # The ranks have not trained with the newest shares yet.
        if max(self._log, default=0) > round:
            return None
        self._seconds = [*self._seconds, seconds][-ROUNDS:]
        if len(self._seconds) < ROUNDS:
            return None
        present = self.of(round) or equal(self.ranks)
        medians = [median(of_rank) for of_rank in zip(*self._seconds, strict=True)]
        next_shares = balance_shares(present, medians)
        change = max(abs(new / old - 1) for new, old in zip(next_shares, present, strict=True))
        if change <= CHANGE:
            return None
        return next_shares

    def restore(self, log: Mapping[int, Sequence[float]], ranks: int) -> None:
        """Continue the log of an earlier job of as many ranks, if shares follow measured times."""
        if self.follows and ranks == self.ranks:
            self._log = {round: tuple(shares) for round, shares in sorted(log.items())}

    def change(self, round: int, shares: Sequence[float]) -> None:
        self._log[round + LEAD] = tuple(shares)
        self._seconds = []
