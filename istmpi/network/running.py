"""Runs a user's network on examples, and refuses networks that cannot be trained."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import nn

from istmpi.errors import ConfigError
from istmpi.network.trials import large
from istmpi.network.user import UserNetwork

TOKENS = 8
"""The length of a short window of text."""


def run_examples(
    network: UserNetwork, module: nn.Module, count: int, run: Callable[..., torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Run a network on examples; return the inputs and the outputs. Raises ConfigError if the
    network fails.

    Numbers are float64, unless the network is `large` or fails with them. Windows are short if it
    accepts them.
    """
    if not large(module):
        # Inspections compare numbers, which float64 rounds least.
        module.to(torch.float64).eval()
        with suppress(ConfigError):
            return run_short(network, network.examples(count, torch.float64), run)
    # Some networks have constants of one type.
    module.to(torch.get_default_dtype()).eval()
    return run_short(network, network.examples(count, torch.get_default_dtype()), run)


def run_short(
    network: UserNetwork, x: tuple[torch.Tensor, ...], run: Callable[..., torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Run short windows of the examples if ``run`` accepts them, else whole ones; return the inputs
    and the outputs."""
    if network.tokens:
        with suppress(ConfigError):
            # Refused by a network with, for example, a layer over the whole window.
            short = (x[0][:, :TOKENS],)
            return short, run(*short)
    return x, run(*x)


def require_trainable(network: UserNetwork, module: nn.Module) -> None:
    """Raise ConfigError unless parameters and buffers are of a kind that can be trained."""
    parameters = dict(module.named_parameters())
    buffers = dict(module.named_buffers())
    if not parameters:
        raise ConfigError(f"{network.name} has no parameters to train.")
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            compiled = f"its module {name}" if name else "it"
            raise network.refused(
                f"{compiled} is compiled by torch.jit, so its layers cannot be read. Build it "
                "without torch.jit.script and torch.jit.trace."
            )
    for name, values in {**parameters, **buffers}.items():
        if values.is_meta:
            kind = "buffer" if name in buffers else "parameter"
            raise network.refused(
                f"its {kind} {name} is on the device meta, which has no values. Create it without "
                "a device."
            )
    for name, parameter in parameters.items():
        problem = ""
        if not parameter.numel():
            shape = " x ".join(map(str, parameter.shape))
            problem = f"has no elements ({shape}). Give its widths at least 1"
        elif not parameter.is_floating_point():
            problem = f"is of {parameter.dtype}; istmpi trains only real floating-point numbers"
        elif "/" in name:
            problem = "has a / in its name, which checkpoints need. Rename it"
        if problem:
            raise network.refused(f"its parameter {name} {problem}.")
