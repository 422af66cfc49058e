"""Finds parameters that a network only adds to its outputs, such as the bias of its last layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from istmpi.network.trials import seeded
from istmpi.trees import call

if TYPE_CHECKING:
    from torch import nn

CHANGE = 0.5
"""The change of a parameter whose effect is looked at."""
TOLERANCE = 1e-4
"""The largest relative difference between equal changes of outputs: float32 rounds."""


@torch.no_grad()
def find_added(network: nn.Module, inputs: tuple[Any, ...], outputs: torch.Tensor) -> list[str]:
    """Return the names of the parameters of one axis that ``network`` only adds to its outputs.

    The same change of such a parameter changes the outputs of all examples alike, and twice the
    change has twice the effect. ``inputs``: those of a batch of several examples, for which the
    network now returns ``outputs``, of which `seeded` made the random numbers.
    """
    # A network has many parameters, and each trial is two passes. Others cannot be added.
    lengths = {1, outputs.shape[-1]}
    return [
        name
        for name, parameter in network.named_parameters()
        if parameter.ndim == 1
        and len(parameter) in lengths
        and _is_added(network, parameter, inputs, outputs)
    ]


def _is_added(
    network: nn.Module, parameter: nn.Parameter, inputs: tuple[Any, ...], start: torch.Tensor
) -> bool:
    """Return True if a network only adds a parameter to its outputs, now ``start``."""
    values = parameter.detach()
    before = values.clone()
    values.add_(CHANGE)
    once = _forward(network, inputs) - start
    values.add_(CHANGE)
    twice = _forward(network, inputs) - start
    values.copy_(before)
    # Rounding errors are those of the outputs, which may be much larger than the change.
    largest = TOLERANCE * max(float(start.abs().max()), CHANGE)
    if not bool((once.abs() > largest).any()):
        return False
    same_for_all = (once - once[:1]).abs().max() <= largest
    in_proportion = (twice - 2 * once).abs().max() <= largest
    return bool(same_for_all and in_proportion)


def _forward(network: nn.Module, inputs: tuple[Any, ...]) -> torch.Tensor:
    # Dropout leaves out the same values each time.
    with seeded():
        return call(network, inputs)
