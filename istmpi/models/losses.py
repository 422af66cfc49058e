"""What a network is trained for, and the score by which it is judged."""

from __future__ import annotations

import torch
from torch.nn import functional


class Classification:
    """Cross-entropy of integer labels; the score is the accuracy."""

    score = "accuracy"

    @staticmethod
    def loss(outputs: torch.Tensor, labels: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        return functional.cross_entropy(outputs, labels, reduction=reduction)

    @staticmethod
    def points(outputs: torch.Tensor, labels: torch.Tensor) -> float:
        """The sum over examples of what the score is the mean of."""
        return float((outputs.argmax(dim=1) == labels).sum())


class Regression:
    """Mean squared error over examples and outputs; the score is the mean absolute error."""

    score = "mean absolute error"

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        loss = functional.mse_loss(outputs, targets.to(outputs.dtype), reduction=reduction)
        return loss if reduction == "mean" else loss / outputs.shape[1]

    @staticmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        """The sum over examples of what the score is the mean of."""
        return float((outputs - targets).abs().mean(dim=1).sum())


TASKS = {"classification": Classification, "regression": Regression}
