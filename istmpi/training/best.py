"""The best score on the validation split so far, and the number of evaluations without a better
one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isnan
from typing import Any

from istmpi.config import Run
from istmpi.data.dataset import Dataset
from istmpi.errors import ConfigError


class Best:
    """Keeps the best of scores that are passed in order; the first of equal scores is the best."""

    def __init__(self, higher_is_better: bool, patience: int, saved: bool = False):
        self._higher = higher_is_better
        self._patience = patience
        self.saved = saved
        """True if the run saves the network of the best score."""
        self.forget()

    @staticmethod
    def from_run(run: Run, data: Dataset) -> Best | None:
        """Return a new object if the run scores the validation split during training; otherwise
        None.

        A run does so if it sets data.validation, train.patience or checkpoint.best. Raises
        ConfigError if the data lack the split.
        """
        reason = ""
        if run.checkpoint.best:
            reason = "checkpoint.best = true"
        if run.train.patience > 0:
            reason = f"train.patience = {run.train.patience}"
        if reason and "validation" not in data.splits:
            raise ConfigError(
                f"{reason} needs a validation split, and {data.source} has none. "
                "Hold examples out: --set data.validation=0.1."
            )
        if not run.watches_validation:
            return None
        return Best(data.scoring.higher_is_better, run.train.patience, run.checkpoint.best)

    def forget(self) -> None:
        self.round: int | None = None
        """Rounds done when the best score was reached; None before the first evaluation."""
        self.score: float | None = None
        self.without_better = 0
        """The number of evaluations since the best score."""

    def __repr__(self) -> str:
        return f"Best(round={self.round}, score={self.score})"

    def take(self, round: int, score: float) -> None:
        """Take a score of the network after so many rounds; NaN is never the best."""
        if self._is_better(score):
            self.round = round
            self.score = score
            self.without_better = 0
        else:
            self.without_better += 1

    def _is_better(self, score: float) -> bool:
        # A comparison with NaN is false, so NaN as the first score would stay the best.
        if isnan(score):
            return False
        if self.score is None:
            return True
        if self._higher:
            return score > self.score
        return score < self.score

    def take_metrics(self, lines: Iterable[Mapping[str, Any]], rounds: int) -> None:
        for line in lines:
            if "validation_score" in line and line["round"] <= rounds:
                self.take(line["round"], line["validation_score"])

    def describe(self, score_name: str) -> str:
        """Return why training ends, in words."""
        return (
            f"no better {score_name} on the validation split in {self.without_better} evaluations "
            f"(train.patience); the best was after round {self.round}"
        )

    @property
    def exhausted(self) -> bool:
        return 0 < self._patience <= self.without_better
