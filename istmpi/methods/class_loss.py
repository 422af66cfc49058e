"""The cross-entropy of classes with smoothed labels (arXiv 1512.00567) and a weight for each class.

It is the loss that training reduces; evaluations give the plain one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from istmpi.data.batches import Batches
from istmpi.errors import ConfigError
from istmpi.tasks import TASKS, Task

if TYPE_CHECKING:
    from istmpi.config.sections import Train

BALANCED = "balanced"


def require_usable(train: Train, task: str, classes: int) -> None:
    """Refuse, with a ConfigError, a smoothing or weights that do not fit the data."""
    weights = train.class_weights
    for name, value in (("label_smoothing", train.label_smoothing), ("class_weights", weights)):
        if value and not TASKS[task].one_class:
            shown = [*value] if isinstance(value, tuple) else value
            raise ConfigError(f"train.{name} = {shown} is for classes, and these data have none. Leave it out.")
    if weights is None or weights == BALANCED:
        return
    if isinstance(weights, str) or len(weights) != classes or not any(weights):
        shown = weights if isinstance(weights, str) else [*weights]
        raise ConfigError(
            f"train.class_weights = {shown} must be {BALANCED}, or {classes} numbers, one for each class, at least one "
            f"above 0."
        )


def class_loss(task: type[Task], train: Train, batches: Batches) -> Callable[..., torch.Tensor]:
    """Return the loss of a run: the task's, or ``nn.CrossEntropyLoss`` with the weights and the smoothing."""
    smoothing, chosen = train.label_smoothing, train.class_weights
    if not smoothing and chosen is None:
        return task.loss
    cached: dict[int, torch.Tensor | None] = {}

    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        classes = outputs.shape[1]
        if classes not in cached:
            cached[classes] = None if chosen is None else torch.tensor(_weights(chosen, batches, classes)).to(outputs)
        weight = cached[classes]
        return functional.cross_entropy(outputs, targets, weight, reduction=reduction, label_smoothing=smoothing)

    return loss


def _weights(chosen: tuple[float, ...] | str, batches: Batches, classes: int) -> list[float]:
    """Return the weight of each class; balanced: examples / (classes * examples of the class), of this rank's."""
    if chosen != BALANCED:
        return [*map(float, chosen)]
    counts = np.bincount(batches.labels, minlength=classes)
    return [len(batches.labels) / (classes * count) if count else 0.0 for count in counts.tolist()]
