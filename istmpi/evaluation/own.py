"""Sums of a user's loss and score over the batches of an evaluation, and over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from istmpi.comm import Communicator
from istmpi.data.batch import Batch
from istmpi.errors import ConfigError, DivergedError
from istmpi.foreign import MOST
from istmpi.trees import all_finite
from istmpi.units import counted

if TYPE_CHECKING:
    import torch

    from istmpi.amounts import Amount
    from istmpi.tasks import OwnTask

Sums = dict[str, np.ndarray]
"""The sum and the count [2] of each amount, by its name."""

Part = tuple[str, Sums, Sums, int]
"""The fault of a process or an empty text, its sums of losses and of scores, and its examples."""

OUTPUTS = "the outputs of the full network are not finite"
LOOKED_AT = 4
"""The most batches of an evaluation that are halved, to see whether a function is a mean over
rows."""


class OwnSums:
    def __init__(self, task: type[OwnTask], looks: bool):
        """``looks``: True if `note` should get a sentence on functions that are no means over
        rows."""
        self._task = task
        self._looks = looks
        self._loss: Sums = {}
        self._score: Sums = {}
        self._fault = ""
        self.examples = 0
        self._first: list[tuple[Any, Batch]] = []
        self.note = ""
        """A sentence about a function that is no mean over rows."""

    def add(self, outputs: Any, batch: Batch) -> None:
        """Add the amounts of a batch.

        Raises ConfigError for an unusable value of a user's function.
        """
        amounts = self._task.losses(outputs, batch)
        _add(self._loss, amounts)
        if self._task.scores:
            scores = self._task.scores(outputs, batch)
            _add(self._score, scores)
            amounts = {f"loss {name}": amount for name, amount in amounts.items()} | scores
        if self._looks and len(self._first) < LOOKED_AT and not self.note:
            self._first.append((outputs, batch))
            self.note = self._task.no_means(self._first)
        # Ranks compare faults at the end: after an error here, others would wait for this one.
        if not self._fault and not all(isfinite(amount.total) for amount in amounts.values()):
            self._fault = self._describe_fault(outputs, batch)
        self.examples += batch.examples

    @property
    def part(self) -> Part:
        """The sums of this process, which another member of its replica group can add."""
        return self._fault, self._loss, self._score, self.examples

    def add_part(self, part: Part) -> None:
        """Add the sums of another member of the replica group."""
        fault, losses, scores, examples = part
        self._fault = self._fault or fault
        _join(self._loss, losses)
        _join(self._score, scores)
        self.examples += examples

    def sum_over_ranks(
        self, communicator: Communicator, spread: bool
    ) -> tuple[float, float, dict[str, float] | None]:
        """Return the loss, the score and further scores of all batches.

        Collective. ``spread``: True if ranks have different batches. Raises on every rank
        ConfigError if nothing counts, and DivergedError if a value is not finite.
        """
        per_rank = communicator.allgather((self._fault, self._loss, self._score))
        if not spread:  # all ranks have added up the same batches
            per_rank = per_rank[:1]
        faults, losses, scores = zip(*per_rank, strict=True)
        for fault in filter(None, faults):
            error = DivergedError(fault)
            error.of_function = fault != OUTPUTS
            error.everywhere = True
            raise error
        with communicator.agreed():
            loss = sum(_divide_sums("loss", losses).values())
            means = {"": loss}
            if self._task.scores:
                means = _divide_sums("score", scores)
        for value in (loss, *means.values()):
            if abs(value) > MOST:
                raise ConfigError(
                    f"a loss or score is {value:g}; a record holds at most {MOST:g}. Scale it."
                )
        first = self._task.score
        if first not in means:  # a score without a name of its own
            first = next(iter(means))
        score = means.pop(first)
        return loss, score, means or None

    def _describe_fault(self, outputs: Any, batch: Batch) -> str:
        if not bool(all_finite(outputs)):
            return OUTPUTS
        for place, function in self._task.functions.items():
            for name, amount in function(outputs, batch).items():
                if not isfinite(amount.total):
                    subject = f"{place}: {name}" if name else place
                    return (
                        f"{subject} is {amount.total} for a batch of "
                        f"{counted(batch.examples, 'example')}, but the network's outputs are "
                        "finite. Return a pair (sum, count) if a batch may have nothing that "
                        "counts. It is"
                    )
        return "the loss or the score is not finite"


def join_loss(
    amounts: Mapping[str, Amount], examples: int, communicator: Communicator
) -> torch.Tensor:
    """Return this rank's part of the loss of all ranks' batches, times all ``examples``.

    Collective.
    """
    counts = np.sum(communicator.allgather([amount.count for amount in amounts.values()]), axis=0)
    terms = []
    for amount, count in zip(amounts.values(), counts.tolist(), strict=True):
        weight = examples / count if count else 0.0
        # The value of a mean is divided by the count of its batch already.
        if amount.is_mean:
            weight *= amount.count
        terms.append(amount.value * weight)
    return sum(terms)


def _add(sums: Sums, amounts: Mapping[str, Amount]) -> None:
    for name, amount in amounts.items():
        _join(sums, {name: np.array([amount.total, amount.count])})


def _join(sums: Sums, others: Sums) -> None:
    for name, values in others.items():
        sums[name] = sums.get(name, 0.0) + values


def _divide_sums(what: str, per_rank: tuple[Sums, ...]) -> dict[str, float]:
    """Return the mean of each amount over all ranks.

    Raises ConfigError for other names on a rank, or no count.
    """
    filled = [sums for sums in per_rank if sums]  # a rank without a batch has no names
    means = {}
    for name in filled[0]:
        if any(sums.keys() != filled[0].keys() for sums in filled):
            raise ConfigError(f"the {what} has other names on some ranks. Return equal names.")
        total, count = sum((sums[name] for sums in filled), start=np.zeros(2)).tolist()
        if not count:
            subject = f"{what} {name}".strip()
            raise ConfigError(
                f"the {subject} has the count 0 in all batches. Return a count above 0."
            )
        means[name] = total / count
    return means
