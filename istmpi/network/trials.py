"""Tools to try a network: few units, repeatable random numbers, comparison of outputs."""

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
"""The largest difference of outputs that counts as rounding, relative to the largest output. Some
networks normalise in single precision even if all else is in double."""
IN_DOUBLE = 10**8
"""The largest number of weights of a network that is run in double precision."""
COARSE = 1e-3
"""`TOLERANCE` for outputs of other types than float64."""


class Watching(TorchDispatchMode):
    """A mode that sees each operation of PyTorch, and does not import PyTorch's compiler."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def large(network: nn.Module) -> bool:
    return sum(parameter.numel() for parameter in network.parameters()) > IN_DOUBLE


def few(lengths: Mapping[str, int]) -> dict[str, int]:
    """Return the lengths with at most `FEW` units of each width."""
    return {name: min(FEW, length) for name, length in lengths.items()}


def alike(values: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return True if outputs are equal but for rounding (`TOLERANCE`)."""
    if not expected.numel():
        return True
    largest = float(expected.abs().max())
    # Relative to the largest output, because single outputs may cancel to nearly 0.
    tolerance = TOLERANCE.get(expected.dtype, COARSE)
    return bool((values - expected).abs().max() <= tolerance * max(largest, 1e-30))


def random_values(network: nn.Module, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Draw parameters' values with which outputs do not vanish, in float64, or in float32 for a
    `large` network."""
    drawn = {}
    dtype = torch.float32 if large(network) else torch.float64
    for name, parameter in network.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=dtype)
        fan = 10
        if parameter.ndim > 1:
            fan = max(parameter[0].numel(), 1)
        values.div_(fan**0.5)
        # The scale of a normalisation is near 1.
        if parameter.ndim == 1 and name.endswith("weight"):
            values.add_(1.0)
        drawn[name] = values
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
    """Remove hooks at the end of the context."""
    handles = list(handles)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
