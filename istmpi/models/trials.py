"""Means of trying a network: few units, the same random numbers, outputs compared."""

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
    from istmpi.models.user import UserNetwork

FEW = 4
"""Units of each width in a small network."""
TOLERANCE = {torch.float64: 1e-5}
"""The largest difference of outputs that rounding makes, relative to the largest output. Some networks normalise in
single precision even where all is in double."""
IN_DOUBLE = 10**8
"""The most weights of a network that is run in double precision."""
COARSE = 1e-3
"""This largest difference for outputs of other precisions."""
TOKENS = 8


class Watching(TorchDispatchMode):
    """A mode that sees each of PyTorch's operations, without its compiler."""

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
    """Values for a network's parameters that let something through: float64, or of a large one float32."""
    drawn, dtype = {}, torch.float32 if large(network) else torch.float64
    for name, parameter in network.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=dtype)
        fan = max(parameter[0].numel(), 1) if parameter.ndim > 1 else 10
        drawn[name] = values.div_(fan**0.5).add_(1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0)
    return drawn


def set_values(network: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Give a network's parameters these values, each in its own precision."""
    for name, parameter in network.named_parameters():
        parameter.data = values[name].to(parameter.dtype)


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch computes with one thread: several only wait for each other here."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Random numbers depend on the seed alone, and nobody else's change."""
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
