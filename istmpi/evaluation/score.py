"""Scores of a network, and the sums over batches from which they are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan, log
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from istmpi.comm import Communicator
from istmpi.data.batch import Batch
from istmpi.data.dataset import Dataset
from istmpi.devices import HOST
from istmpi.evaluation.further import Further, FurtherTotals
from istmpi.multilabel import Ranking, compute_parts
from istmpi.outputs import LossOfOutputs, list_outputs, name_scores, take_last
from istmpi.record import write_own_key
from istmpi.tasks import Task

if TYPE_CHECKING:
    from istmpi.outputs import Outputs


@dataclass(frozen=True)
class Score:
    """A network's result on a split.

    It has the mean loss, the mean score (such as accuracy) and the number of scored examples.
    """

    loss: float
    """The loss as in training, of standardised targets if the run has them. NaN for a score of a
    user's program."""
    score: float
    """The score in the units of the data; with several outputs, that of the last one."""
    examples: int
    by_output: Mapping[str, float] | None = None
    """The score of every output by its name if there are several, otherwise None."""
    bits_per_byte: float | None = None
    """The loss of text in bits for each of its bytes; None for other data."""
    more: Mapping[str, float] | None = None
    """Further scores by their names; None if the task has none."""
    form: str = "merged"
    """The form of the network that was scored (evaluate.form)."""
    further: Further | None = None
    """Scores of classes or numbers beside ``score``, which lines of rounds leave out."""

    def record(self, split: str = "test_") -> dict[str, float | str]:
        """Return the entries of a line of metrics.jsonl. ``split``: the beginning of some keys."""
        line: dict[str, float | str] = {"score": self.score}
        if not isnan(self.loss):
            line[f"{split}loss"] = self.loss
        line[f"{split}examples"] = self.examples
        for name, score in (self.by_output or {}).items():
            line[f"{name}_score"] = score
        if self.form != "merged":
            line["form"] = self.form
        if self.bits_per_byte is not None:
            line["bits_per_byte"] = self.bits_per_byte
        # No further score replaces an entry of the line.
        more: dict[str, float | str] = {}
        for name, score in (self.more or {}).items():
            more[write_own_key(name)] = score
        if self.further:
            more |= self.further.record()
        return more | line

    def describe(self) -> str:
        """Return the scores in words, without loss and examples."""
        words = f"{self.score:.4f}"
        if self.by_output:
            scores = [f"{name} {value:.4f}" for name, value in self.by_output.items()]
            words += f" ({', '.join(scores)})"
        if self.bits_per_byte:
            words += f" ({self.bits_per_byte:.4f} bits a byte)"
        for name, value in (self.more or {}).items():
            words += f"  {name} {value:.4f}"
        return words


class Totals(Protocol):
    """Sums over the batches of an evaluation, whose means are loss and score."""

    @property
    def margins(self) -> list[np.ndarray]:
        """The rows of `FurtherTotals.margins` so far."""

    @property
    def count(self) -> int:
        """The number of sums."""

    def add_up(self, outputs: Outputs, batch: Batch) -> np.ndarray:
        """Return the sums of a batch, ``[count]``."""

    def score(self, sums: np.ndarray, form: str) -> Score:
        """Return the score of all batches, whose sums were added."""


class PointTotals:
    """The sums of a task whose score is a mean of `Task.points`.

    They are loss, examples, and the points of each output.
    """

    def __init__(
        self,
        task: type[Task],
        data: Dataset,
        outputs: int,
        loss: LossOfOutputs,
        further: FurtherTotals | None,
    ) -> None:
        """``outputs``: the number of outputs of a pass."""
        self._task = task
        self._data = data
        self._loss = loss
        self._own_count = 2 + outputs * task.numbers
        self._further = further
        self.count = self._own_count
        if further:
            self.count += further.count

    @property
    def margins(self) -> list[np.ndarray]:
        if self._further is None:
            return []
        return self._further.margins

    def add_up(self, outputs: Outputs, batch: Batch) -> np.ndarray:
        loss = self._loss(outputs, batch.targets, reduction="sum")
        points = []
        for output in list_outputs(outputs):
            # Losses are of standardised targets, scores in the units of the data.
            points.append(self._task.points(*self._in_units(output, batch.targets)))
        sums = [np.array([float(loss), batch.examples]), np.reshape(points, -1)]
        if self._further:
            sums.append(self._further.add_up(take_last(outputs), batch.targets))
        return np.concatenate(sums)

    def score(self, sums: np.ndarray, form: str) -> Score:
        # As `add_up` joins them.
        total, examples, *points = sums[: self._own_count].tolist()
        further = None
        if self._further:
            further = self._further.score(sums[self._own_count :], int(examples))
        loss = total / examples
        means = [point / examples for point in points]
        numbers = self._task.numbers
        scores = []
        for first in range(0, len(means), numbers):
            scores.append(self._task.score_from_means(*means[first : first + numbers]))
        bits = None
        if self._data.bytes_per_token:
            # From nats of a token to bits of a byte.
            bits = loss / log(2) / self._data.bytes_per_token
        return Score(
            loss=loss,
            score=scores[-1],
            examples=int(examples),
            by_output=name_scores(scores),
            bits_per_byte=bits,
            more=self._task.more(self._data.outputs, *means[-numbers:]),  # of the last output
            form=form,
            further=further,
        )

    def _in_units(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._data.targets is None:
            return outputs, targets
        mean, std = (torch.from_numpy(values).to(outputs) for values in self._data.targets)
        return outputs * std + mean, targets * std + mean


class RankingTotals:
    """The sums of a task that ranks labels (`istmpi.multilabel.Ranking`)."""

    count = Ranking.size
    margins: list[np.ndarray]

    def __init__(
        self,
        score_name: str,
        kind: str,
        ranking: Ranking,
        labels: range | None,
        communicator: Communicator,
    ) -> None:
        """``kind``: the loss.

        ``labels``: the labels whose logits a pass on this rank returns, if each rank returns some;
        None if it returns all.
        """
        self.margins = []
        self._score_name = score_name
        self._kind = kind
        self._ranking = ranking
        self._labels = labels
        self._communicator = communicator

    def add_up(self, outputs: Outputs, batch: Batch) -> np.ndarray:
        first = 0 if self._labels is None else self._labels.start
        targets = batch.targets.to(HOST)
        logits = take_last(outputs).cpu()
        part = compute_parts(logits, first, targets, self._kind)
        if self._labels is None:
            return self._ranking.sums([part], targets)
        # Ranks send a few numbers of each example instead of its logits.
        ranks = self._communicator.size
        flat = self._communicator.allgatherv(part.reshape(-1), [part.size] * ranks)
        return self._ranking.sums([*flat.reshape(ranks, *part.shape)], targets)

    def score(self, sums: np.ndarray, form: str) -> Score:
        loss, examples, *_ = sums.tolist()
        scores = Ranking.scores(sums)
        score = scores.pop(self._score_name)
        return Score(loss / examples, score, int(examples), more=scores, form=form)
