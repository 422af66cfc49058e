"""The training loss for classes, with label smoothing (arXiv 1512.00567) and class weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from istmpi.data.batches import Batches
from istmpi.methods.limits import BALANCED
from istmpi.tasks import Task

if TYPE_CHECKING:
    from istmpi.config.sections import Train


def class_loss(task: type[Task], train: Train, batches: Batches) -> Callable[..., torch.Tensor]:
    """Return a run's loss function: the task's, or the cross-entropy with class weights and label
    smoothing."""
    if not train.label_smoothing and train.class_weights is None:
        return task.loss
    weights = train.class_weights
    if weights == BALANCED:
        counts = np.bincount(batches.labels)
        weights = np.where(
            counts, len(batches.labels) / np.maximum(counts, 1) / np.count_nonzero(counts), 1
        )
    given = None if weights is None else torch.as_tensor(weights)

    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        its = None
        if given is not None:
            its = outputs.new_ones(outputs.shape[1])
            its[: len(given)] = given.to(outputs)
        smoothing = train.label_smoothing
        return functional.cross_entropy(
            outputs, targets, its, reduction=reduction, label_smoothing=smoothing
        )

    return loss
