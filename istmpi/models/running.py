"""Runs a network as cheaply as it can be run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import nn

from istmpi.errors import ConfigError
from istmpi.models.trials import large
from istmpi.models.user import UserNetwork

TOKENS = 8
"""The length of a short window."""


def running(
    network: UserNetwork, module: nn.Module, count: int, run: Callable[..., torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Examples that a network takes, short windows if it can, and what ``run`` makes of them, in double if it can."""
    if not large(module):
        module.to(torch.float64).eval()
        with suppress(ConfigError):
            return shortly(network, network.examples(count, torch.float64), run)
    module.to(torch.get_default_dtype()).eval()
    return shortly(network, network.examples(count, torch.get_default_dtype()), run)


def shortly(
    network: UserNetwork, x: tuple[torch.Tensor, ...], run: Callable[..., torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Short windows of examples, if ``run`` takes these, else the examples; and what it makes of them."""
    if network.tokens:
        with suppress(ConfigError):
            return (short := (x[0][:, :TOKENS],)), run(*short)
    return x, run(*x)
