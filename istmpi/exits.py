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

    Outputs = torch.Tensor | Sequence[torch.Tensor]
    """A network's outputs as returned: a tensor, or a list or tuple with a tensor for each exit."""


def outputs_of(returned: Outputs) -> tuple[torch.Tensor, ...]:
    return tuple(returned) if isinstance(returned, list | tuple) else (returned,)


def joined(returned: Outputs) -> torch.Tensor:
    """Return the outputs ``[b, outputs]`` of all exits side by side, ``[b, exits * outputs]``."""
    import torch

    outputs = outputs_of(returned)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def weighted_loss(
    loss: Callable[..., torch.Tensor],
    returned: Outputs,
    targets: torch.Tensor,
    weights: Sequence[float],
    **how: str,
) -> torch.Tensor:
    """Return the sum over exits of weight times ``loss`` (called with ``how``); without
    ``weights``, a weight is 1."""
    losses = [loss(outputs, targets, **how) for outputs in outputs_of(returned)]
    if weights:
        losses = [weight * each for weight, each in zip(weights, losses, strict=True)]
    return reduce(add, losses)


def require_fitting(weights: Sequence[float], exits: int, network: str) -> None:
    """Raise ConfigError unless ``weights`` is empty, or has a weight for each exit, not all 0.
    ``network``: a name."""
    shown = f"train.exit_weights = {list(weights)}"
    if weights and len(weights) != exits:
        cure = f"Give {exits} numbers" if exits > 1 else "Leave it out"
        raise ConfigError(
            f"{shown}: {network} has {exits} output{'s' * (exits > 1)}, including the last. {cure}."
        )
    if weights and not any(weights):
        raise ConfigError(f"{shown} has no weight above 0. Give at least one.")
