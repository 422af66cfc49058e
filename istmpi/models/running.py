"""Examples and a precision in which a network can be run, as cheap ones as it takes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from istmpi.errors import ConfigError
from istmpi.models.user import UserNetwork

TOKENS = 8
"""Length of a window that is tried, if the network takes any: axes are the same for all, and outputs may be many."""
IN_DOUBLE = 10**8
"""The most weights of a network that is tried at its own size in double precision."""


def running(
    network: UserNetwork, module: nn.Module, count: int, run: Callable[..., torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Examples that a network takes, short windows if it can, and what ``run`` makes of them.

    The network becomes one of double precision; it has its own where it fails in double, or is large.
    """
    own = torch.get_default_dtype()
    large = sum(parameter.numel() for parameter in module.parameters()) > IN_DOUBLE
    problem = None
    for dtype in (own,) if large else (torch.float64, own):
        module.to(dtype).eval()
        examples = network.examples(count, dtype)
        for x in [*([(examples[0][:, :TOKENS],)] if network.tokens else []), examples]:
            try:
                return x, run(*x)
            except ConfigError as error:
                problem = error
    assert problem is not None
    raise problem
