"""The best score on the validation split so far, and the number of evaluations without a better
one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from istmpi.config import Run
from istmpi.data.dataset import Dataset
from istmpi.errors import ConfigError


class Best:
    """Keeps the best of scores that are passed in order; the first of equal scores is the best."""

    def __init__(self, higher_is_better: bool, patience: int):
        self._higher, self._patience = higher_is_better, patience
        self.forget()

    @staticmethod
    def of(run: Run, data: Dataset) -> Best | None:
        """Return a new object if the run scores the validation split during training; otherwise
        None.

        A run does so if it sets data.validation, train.patience or checkpoint.best. Raises
        ConfigError if the data lack the split, or if both checkpoint.best and train.resolution are
        set.
        """
        reasons = [f"train.patience = {run.train.patience}"] * (run.train.patience > 0)
        reasons += ["checkpoint.best = true"] * run.checkpoint.best
        if reasons and "validation" not in data.splits:
            raise ConfigError(
                f"{reasons[0]} needs a validation split, and {data.source} has none. Hold examples out: --set "
                "data.validation=0.1."
            )
        if run.checkpoint.best and run.train.resolution:
            raise ConfigError(
                "checkpoint.best = true does not go with train.resolution, because networks for different "
                "image sizes cannot be compared. Leave one out."
            )
        return (
            Best(data.scoring.higher_is_better, run.train.patience)
            if run.watches_validation
            else None
        )

    def forget(self) -> None:
        self.round: int | None = None
        """Rounds done when the best score was reached; None before the first evaluation."""
        self.score: float | None = None
        self.without_better = 0
        """The number of evaluations since the best score."""

    def take(self, round: int, score: float) -> None:
        better = self.score is None or (score > self.score if self._higher else score < self.score)
        if better and score == score:
            self.round, self.score, self.without_better = round, score, 0
        else:
            self.without_better += 1

    def take_metrics(self, lines: Iterable[Mapping[str, Any]], rounds: int) -> None:
        for line in lines:
            if "validation_score" in line and line["round"] <= rounds:
                self.take(line["round"], line["validation_score"])

    def described(self, score_name: str) -> str:
        return (
            f"no better {score_name} on the validation split in {self.without_better} evaluations "
            f"(train.patience); the best was after round {self.round}"
        )

    @property
    def exhausted(self) -> bool:
        return 0 < self._patience <= self.without_better
