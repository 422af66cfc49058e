"""Outputs of networks: a tensor, or a tensor for each exit; the last exit is the network's end.

An early exit is a classifier in the middle of a network (BranchyNet, arXiv 1709.01686; over
devices, edge and cloud, arXiv 1709.01921). The loss is the weighted sum over exits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from istmpi.errors import ConfigError

if TYPE_CHECKING:
    import torch

    Outputs = torch.Tensor | list[torch.Tensor] | tuple[torch.Tensor, ...]
    """A network's outputs as returned: a tensor, or a list or tuple with a tensor for each exit."""


def outputs_of(returned: Outputs) -> tuple[torch.Tensor, ...]:
    if isinstance(returned, list | tuple):
        return tuple(returned)
    return (returned,)


def joined(returned: Outputs) -> torch.Tensor:
    """Return the outputs ``[b, outputs]`` of all exits side by side, ``[b, exits * outputs]``."""
    import torch

    outputs = outputs_of(returned)
    if len(outputs) == 1:
        return outputs[0]
    return torch.cat(outputs, dim=1)


def weighted_loss(
    loss: Callable[..., torch.Tensor],
    returned: Outputs,
    targets: torch.Tensor,
    weights: Sequence[float],
    **options: str,
) -> torch.Tensor:
    """Return the sum over exits of weight times ``loss``, which is called with ``options``.

    Without ``weights``, each weight is 1.
    """
    losses = [loss(outputs, targets, **options) for outputs in outputs_of(returned)]
    if weights:
        losses = [weight * value for weight, value in zip(weights, losses, strict=True)]
    # `sum` would begin with 0, which adds a node to the graph of gradients.
    return reduce(add, losses)


def require_fitting(weights: Sequence[float], exits: int, network: str) -> None:
    """Raise ConfigError unless ``weights`` is empty, or has a weight for each exit, not all 0.

    ``network``: a name.
    """
    shown = f"train.exit_weights = {list(weights)}"
    if weights and len(weights) != exits:
        outputs = "1 output"
        cure = "Leave it out"
        if exits > 1:
            outputs = f"{exits} outputs"
            cure = f"Give {exits} numbers"
        raise ConfigError(f"{shown}: {network} has {outputs}, including the last. {cure}.")
    if weights and not any(weights):
        raise ConfigError(f"{shown} has no weight above 0. Give at least one.")
