"""Means of trying a network: few units, the same random numbers, outputs compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

FEW = 4
"""Units of each width in a small network."""
TOLERANCE = {torch.float64: 1e-5}
"""The largest difference of outputs that rounding makes, relative to the largest output. Some networks normalise in
single precision even where all is in double."""
IN_DOUBLE = 10**8
"""The most weights of a network that is run in double precision."""
COARSE = 1e-3
"""This largest difference for outputs of other precisions."""


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
    """Return True if two outputs differ by no more than rounding."""
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
