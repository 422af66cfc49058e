"""Outputs of networks: one tensor, or one for each exit, the last of them the full network's.

An early exit is a classifier in the middle of a network (BranchyNet, arXiv 1709.01686; over devices, edge and cloud,
arXiv 1709.01921). The loss is the weighted sum over exits; an example leaves at the first exit that is sure of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import log
from operator import add
from typing import TYPE_CHECKING

from istmpi.errors import ConfigError

if TYPE_CHECKING:
    import torch

    Outputs = torch.Tensor | Sequence[torch.Tensor]
    """Outputs as a network returns them, each ``[b, outputs]``."""

THRESHOLDS = tuple(number / 100 for number in range(101))
"""Thresholds of the normalised entropy for a curve of accuracy against the share that leaves early."""

HALF_A_POINT = 0.005
"""The accuracy that `nearly_free` may lose."""


@dataclass(frozen=True)
class ExitPoint:
    """The results of leaving early with one threshold."""

    threshold: float
    accuracy: float
    """The accuracy over all examples, each at the exit where it leaves."""
    shares: tuple[float, ...]
    """The shares of the examples that leave at each exit."""
    right: tuple[float, ...]
    """The shares of all examples that leave at each exit and are classified right."""

    @property
    def early(self) -> float:
        """The share that leaves before the last exit."""
        return 1 - self.shares[-1]


def nearly_free(curve: Sequence[ExitPoint]) -> ExitPoint:
    """The point of a curve from threshold 0 on at which most leave early for less than half a point of accuracy."""
    least = curve[0].accuracy - HALF_A_POINT
    return max((point for point in curve if point.accuracy > least), key=lambda point: point.early)


def outputs_of(returned: Outputs) -> tuple[torch.Tensor, ...]:
    """The outputs of every exit."""
    return tuple(returned) if isinstance(returned, list | tuple) else (returned,)


def joined(returned: Outputs) -> torch.Tensor:
    """The outputs of all exits side by side, ``[b, exits * outputs]``; those of one exit as they are."""
    import torch

    outputs = outputs_of(returned)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def weighted_loss(
    loss: Callable[..., torch.Tensor], returned: Outputs, targets: torch.Tensor, weights: Sequence[float], **how: str
) -> torch.Tensor:
    """The sum over exits of a task's loss, each by its weight; without weights each counts 1."""
    losses = [loss(outputs, targets, **how) for outputs in outputs_of(returned)]
    if weights:
        losses = [weight * each for weight, each in zip(weights, losses, strict=True)]
    return reduce(add, losses)


def require_fitting(weights: Sequence[float], exits: int, network: str) -> None:
    """Refuse, with a ConfigError, weights of the loss that are not one for each exit, or all zero."""
    shown = f"train.exit_weights = {list(weights)}"
    if weights and len(weights) != exits:
        cure = f"Give {exits} numbers" if exits > 1 else "Leave it out"
        raise ConfigError(f"{shown}: {network} has {exits} output{'s' * (exits > 1)}, the last one's included. {cure}.")
    if weights and not any(weights):
        raise ConfigError(f"{shown} leaves nothing to train for. Give at least one that is above 0.")


def normalised_entropy(outputs: torch.Tensor) -> torch.Tensor:
    """The doubt about each example: the entropy of its classes over the largest possible, ``[b]`` in [0, 1]."""
    import torch

    entropy = torch.special.entr(outputs.double().softmax(dim=1)).sum(dim=1)
    return (entropy / log(max(outputs.shape[1], 2))).clamp(0, 1)


def entropies(returned: Outputs) -> list[torch.Tensor]:
    """The normalised entropy of each example, at each exit but the last."""
    return [normalised_entropy(outputs) for outputs in outputs_of(returned)[:-1]]


def exit_taken(entropies: Sequence[torch.Tensor], threshold: float) -> torch.Tensor:
    """The number, from 0, of the first exit whose entropy is below the threshold, for each example: ``[b]`` int64.

    All leave at the last exit with a threshold of 0, at the first with 1.
    """
    import torch

    taken = torch.full_like(entropies[0], len(entropies), dtype=torch.int64)
    for number in reversed(range(len(entropies))):
        taken[(entropies[number] < threshold) | (threshold >= 1)] = number
    return taken
