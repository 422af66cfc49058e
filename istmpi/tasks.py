"""What a network is trained for: the loss, and the score by which it is judged. Described without torch.

A new task is a class here and its name in `TASKS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import exp
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CLASSIFICATION = "classification"
REGRESSION = "regression"
NEXT_TOKEN = "next-token"


class Task(ABC):
    """A loss to make smaller, and a score to judge by, each a mean over examples."""

    score: str
    """The name of the score."""
    higher_is_better: bool
    """Of two scores."""

    @staticmethod
    @abstractmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        """The loss of a batch's outputs ``[b, outputs]``: the mean over its examples, or the ``"sum"``."""

    @staticmethod
    @abstractmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        """The sum over examples of what the score is made of the mean of."""

    @staticmethod
    def of_mean(points: float) -> float:
        """The score, of the mean over examples of their `points`."""
        return points


class Classification(Task):
    """Cross-entropy of integer labels; the score is the accuracy."""

    score = "accuracy"
    higher_is_better = True

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        from torch.nn import functional

        return functional.cross_entropy(outputs, targets, reduction=reduction)

    @staticmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float(Classification.right(outputs, targets).sum())

    @staticmethod
    def right(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Which examples have the class that is likeliest, ``[b]`` bool."""
        return outputs.argmax(dim=1) == targets


class Regression(Task):
    """Mean squared error over examples and outputs; the score is the mean absolute error."""

    score = "mean absolute error"
    higher_is_better = False

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        from torch.nn import functional

        loss = functional.mse_loss(outputs, targets.to(outputs.dtype), reduction=reduction)
        return loss if reduction == "mean" else loss / outputs.shape[1]

    @staticmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float((outputs - targets).abs().mean(dim=1).sum())


class NextToken(Task):
    """Cross-entropy of each token given those before it, in nats: outputs ``[b, t, vocabulary]``, targets ``[b, t]``.

    An example is a window of tokens, and its loss their mean; the score is the perplexity of all.
    """

    score = "perplexity"
    higher_is_better = False

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        from torch.nn import functional

        given = targets.flatten(0, 1)  # tokens, or the odds of each: [b, t, vocabulary]
        loss = functional.cross_entropy(outputs.flatten(0, 1), given, reduction=reduction)
        return loss if reduction == "mean" else loss / outputs.shape[1]

    @staticmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float(NextToken.loss(outputs, targets, reduction="sum"))

    @staticmethod
    def of_mean(points: float) -> float:
        return exp(points)


TASKS: dict[str, type[Task]] = {CLASSIFICATION: Classification, REGRESSION: Regression, NEXT_TOKEN: NextToken}


def higher_is_better(score: str) -> bool:
    """Whether the higher of two scores of this name is the better one; so it is of scores that no task here has."""
    return all(task.higher_is_better for task in TASKS.values() if task.score == score)
