"""What a network returns: one tensor of outputs, or one for each of its exits, the last of them the full network's.

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
    """As a network returns them, each ``[b, outputs]``."""

THRESHOLDS = tuple(number / 100 for number in range(101))
"""Of the normalised entropy, as a curve of accuracy against the share that leaves early has them."""


HALF_A_POINT = 0.005
"""Of accuracy: what a threshold may cost to be named."""


@dataclass(frozen=True)
class ExitPoint:
    """What becomes of examples that leave early with one threshold."""

    threshold: float
    accuracy: float
    """Of all examples, each at the exit where it leaves."""
    shares: tuple[float, ...]
    """Of the examples that leave at each exit; they sum to 1."""
    right: tuple[float, ...]
    """Of all examples, those that leave at each exit and are classified right."""

    @property
    def early(self) -> float:
        """The share that leaves before the last exit."""
        return 1 - self.shares[-1]


def nearly_free(curve: Sequence[ExitPoint]) -> ExitPoint:
    """Of a curve from threshold 0 on, the point with most early leavers that loses less than half a point."""
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
        losses = [weight * of for weight, of in zip(weights, losses, strict=True)]
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
    """How unsure a classifier is of each example: its classes' entropy over the largest possible, ``[b]`` in [0, 1]."""
    import torch

    entropy = torch.special.entr(outputs.double().softmax(dim=1)).sum(dim=1)
    return (entropy / log(max(outputs.shape[1], 2))).clamp(0, 1)


def entropies(returned: Outputs) -> list[torch.Tensor]:
    """The normalised entropy of each example, at each exit but the last."""
    return [normalised_entropy(outputs) for outputs in outputs_of(returned)[:-1]]


def exit_taken(entropies: Sequence[torch.Tensor], threshold: float) -> torch.Tensor:
    """The number, from 0, of the exit at which each example leaves, ``[b]`` int64: of the first whose entropy is below.

    With a threshold of 0 all leave at the last exit, with 1 at the first.
    """
    import torch

    taken = torch.full_like(entropies[0], len(entropies), dtype=torch.int64)
    for number in reversed(range(len(entropies))):
        taken[(entropies[number] < threshold) | (threshold >= 1)] = number
    return taken
