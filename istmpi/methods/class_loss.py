"""The training loss for classes, with label smoothing (arXiv 1512.00567) and class weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from istmpi.data.batch import Batch
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
    weights = _choose_weights(train, batches)

    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        weights_of_outputs = None
        if weights is not None:
            # A rank's data may lack the last classes, which then have the weight 1.
            weights_of_outputs = outputs.new_ones(outputs.shape[1])
            weights_of_outputs[: len(weights)] = weights.to(outputs)
        return functional.cross_entropy(
            outputs,
            targets,
            weights_of_outputs,
            reduction=reduction,
            label_smoothing=train.label_smoothing,
        )

    return loss


def weigh_classes(train: Train, batches: Batches) -> Callable[[Batch], float]:
    """Return a function of how much a batch counts in a mean loss: the weights of its examples."""
    weights = _choose_weights(train, batches)
    if weights is None:
        return lambda batch: batch.examples

    def weigh(batch: Batch) -> float:
        # A rank's data may lack the last classes, which then have the weight 1.
        weighed = batch.targets[batch.targets < len(weights)]
        return float(weights[weighed].double().sum()) + batch.examples - len(weighed)

    return weigh


def _choose_weights(train: Train, batches: Batches) -> torch.Tensor | None:
    """Return the weights of the classes, ``[class]``; None if all weights are 1."""
    if train.class_weights is None:
        return None
    if train.class_weights != BALANCED:
        return torch.as_tensor(train.class_weights)
    # All examples of a class together weigh as much as those of any other class on this rank.
    counts = np.bincount(batches.labels)
    balanced = len(batches.labels) / np.maximum(counts, 1) / np.count_nonzero(counts)
    return torch.as_tensor(np.where(counts, balanced, 1))
