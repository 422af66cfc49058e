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
"""The length of a short window: axes are the same for all, and outputs may be many."""


def running(
    network: UserNetwork, module: nn.Module, count: int, run: Callable[..., torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Examples that a network takes, short windows if it can, and what ``run`` makes of them.

    It is run in double precision, in its own where that fails or it is large.
    """
    if not large(module):
        module.to(torch.float64).eval()
        with suppress(ConfigError):
            return shortly(network, network.examples(count, torch.float64), run)
    module.to(torch.get_default_dtype()).eval()
    return shortly(network, network.examples(count, torch.get_default_dtype()), run)


def shortly(
    network: UserNetwork, x: tuple[torch.Tensor, ...], run: Callable[..., torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Short windows of examples, if ``run`` takes these, or else the examples; and what it makes of them."""
    if network.tokens:
        with suppress(ConfigError):
            return (short := (x[0][:, :TOKENS],)), run(*short)
    return x, run(*x)
