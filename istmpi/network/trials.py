"""Tools to try a network: few units, repeatable random numbers, comparison of outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from istmpi.errors import ConfigError

if TYPE_CHECKING:
    from istmpi.network.user import UserNetwork

FEW = 4
"""Units of each width in a small network."""
TOLERANCE = {torch.float64: 1e-5}
"""The largest difference of outputs that counts as rounding, relative to the largest output. Some
networks normalise in single precision even if all else is in double."""
IN_DOUBLE = 10**8
"""The largest number of weights of a network that is run in double precision."""
COARSE = 1e-3
"""`TOLERANCE` for outputs of other types than float64."""
TOKENS = 8


class Watching(TorchDispatchMode):
    """A mode that sees each operation of PyTorch, and does not import PyTorch's compiler."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def large(network: nn.Module) -> bool:
    return sum(parameter.numel() for parameter in network.parameters()) > IN_DOUBLE


def few(lengths: Mapping[str, int]) -> dict[str, int]:
    return {name: min(FEW, length) for name, length in lengths.items()}


def alike(values: torch.Tensor, expected: torch.Tensor) -> bool:
    if not expected.numel():
        return True
    largest = float(expected.abs().max())
    tolerance = TOLERANCE.get(expected.dtype, COARSE)
    return bool((values - expected).abs().max() <= tolerance * max(largest, 1e-30))


def random_values(network: nn.Module, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Draw parameters' values with which outputs do not vanish, in float64, or in float32 for a
    `large` network."""
    drawn = {}
    dtype = torch.float32 if large(network) else torch.float64
    for name, parameter in network.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=dtype)
        fan = max(parameter[0].numel(), 1) if parameter.ndim > 1 else 10
        drawn[name] = values.div_(fan**0.5).add_(
            1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0
        )
    return drawn


def set_values(network: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in network.named_parameters():
        parameter.data = values[name].to(parameter.dtype)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch use one thread in this context."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Make PyTorch's random numbers on the CPU in this context depend on the seed alone. Restore
    their state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    handles = list(handles)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def running(
    network: UserNetwork, module: nn.Module, count: int, run: Callable[..., torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Run a network on examples; return the inputs and the outputs. Raises ConfigError if the
    network fails.

    Numbers are float64, unless the network is `large` or fails with them. Windows are short if it
    accepts them.
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
    """Run short windows of the examples if ``run`` accepts them, else whole ones; return the inputs
    and the outputs."""
    if network.tokens:
        with suppress(ConfigError):
            short = (x[0][:, :TOKENS],)
            return short, run(*short)
    return x, run(*x)


def require_trainable(network: UserNetwork, module: nn.Module) -> None:
    parameters = dict(module.named_parameters())
    buffers = dict(module.named_buffers())
    if not parameters:
        raise ConfigError(f"{network.name} has no parameters to train.")
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            compiled = f"its module {name}" if name else "it"
            raise network.refused(
                f"{compiled} is compiled by torch.jit, so its layers cannot be read. Build it without torch.jit.script "
                "and torch.jit.trace."
            )
    for name, values in {**parameters, **buffers}.items():
        if values.is_meta:
            raise network.refused(
                f"its {'buffer' if name in buffers else 'parameter'} {name} is on the device "
                "meta, which has no values. Create it without a device."
            )
    for name, parameter in parameters.items():
        problem = ""
        if not parameter.numel():
            problem = f"has no elements ({' x '.join(map(str, parameter.shape))}). Give its widths at least 1"
        elif not parameter.is_floating_point():
            problem = f"is of {parameter.dtype}; istmpi trains only real floating-point numbers"
        elif "/" in name:
            problem = "has a / in its name, which checkpoints need. Rename it"
        if problem:
            raise network.refused(f"its parameter {name} {problem}.")
