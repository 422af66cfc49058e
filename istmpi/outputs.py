"""Outputs of networks: a tensor, or a tensor for each exit; the last exit is the network's end.

An early exit is a classifier in the middle of a network (BranchyNet, arXiv 1709.01686; over
devices, edge and cloud, arXiv 1709.01921). The loss is the weighted sum over exits. Predictions are
those of the last exit. Other modules ask for outputs: their names, the loss, the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Protocol

from istmpi.errors import ConfigError

if TYPE_CHECKING:
    import torch

    Outputs = torch.Tensor | list[torch.Tensor] | tuple[torch.Tensor, ...]
    """A network's outputs as returned: a tensor, or a list or tuple with a tensor for each exit."""

KEY_IN_FILES = "exits"
"""The key of the number of outputs in a table, and of their scores in an earlier record."""
SCORED = r"exit\d+"
"""A regular expression of the names that `name_scores` gives."""


def list_outputs(returned: Outputs) -> tuple[torch.Tensor, ...]:
    """Return the outputs of all exits, the last one's last."""
    if isinstance(returned, list | tuple):
        return tuple(returned)
    return (returned,)


def take_last(returned: Outputs) -> torch.Tensor:
    """Return the outputs from which the network predicts."""
    return list_outputs(returned)[-1]


def join_outputs(returned: Outputs) -> torch.Tensor:
    """Return the outputs ``[b, outputs]`` of all exits side by side, ``[b, exits * outputs]``."""
    import torch

    outputs = list_outputs(returned)
    if len(outputs) == 1:
        return outputs[0]
    return torch.cat(outputs, dim=1)


def name_outputs(count: int) -> tuple[str, ...]:
    """Return the names of a network's outputs: exit1, exit2, ..., and output for the last one."""
    return (*(f"exit{number}" for number in range(1, count)), "output")


def name_scores(scores: Sequence[float]) -> dict[str, float] | None:
    """Return the scores of several outputs by name, exit1 to the last one; None for one output."""
    if len(scores) == 1:
        return None
    return {f"exit{number}": score for number, score in enumerate(scores, 1)}


def read_scores(record: Mapping[str, Any]) -> dict[str, float]:
    """Return what `name_scores` returns, from the record of a score of an earlier istmpi."""
    scores = record.get(KEY_IN_FILES)
    if isinstance(scores, list):
        return name_scores(scores) or {}
    return {}


class TrainSettings(Protocol):
    @property
    def exit_weights(self) -> Sequence[float]: ...


@dataclass(frozen=True)
class LossOfOutputs:
    """The loss of a network: the sum over exits of weight times the ``loss`` of an exit's outputs.

    ``weights``: 1 for each exit, if empty.
    """

    loss: Callable[..., torch.Tensor]
    weights: Sequence[float] = ()

    @staticmethod
    def from_settings(loss: Callable[..., torch.Tensor], train: TrainSettings) -> LossOfOutputs:
        return LossOfOutputs(loss, train.exit_weights)

    def __call__(self, returned: Outputs, targets: torch.Tensor, **options: str) -> torch.Tensor:
        """Return the loss; ``loss`` is called with ``options``."""
        losses = [self.loss(outputs, targets, **options) for outputs in list_outputs(returned)]
        if self.weights:
            losses = [weight * value for weight, value in zip(self.weights, losses, strict=True)]
        # `sum` would begin with 0, which adds a node to the graph of gradients.
        return reduce(add, losses)


def require_weights(train: TrainSettings, exits: int, network: str) -> None:
    """Raise ConfigError unless ``train.exit_weights`` is empty, or has a weight for each of several
    exits, not all 0.

    ``network``: a name.
    """
    weights = train.exit_weights
    shown = f"train.exit_weights = {list(weights)}"
    # A weight of one output would only change the learning rate.
    if weights and (len(weights) != exits or exits == 1):
        outputs = "1 output"
        cure = "Leave it out"
        if exits > 1:
            outputs = f"{exits} outputs"
            cure = f"Give {exits} numbers"
        raise ConfigError(f"{shown}: {network} has {outputs}, including the last. {cure}.")
    if weights and not any(weights):
        raise ConfigError(f"{shown} has no weight above 0. Give at least one.")
