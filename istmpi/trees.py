"""A user's own batches: trees of dicts, lists and tuples with tensors as their leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Named(dict):
    """A network's keyword arguments, which are the last input of a batch."""


def inputs_to(
    inputs: tuple[Any, ...], device: torch.device | str, dtype: torch.dtype
) -> tuple[Any, ...]:
    """Return a batch's inputs on a device. Floating-point tensors also get the ``dtype``."""

    def move(x: torch.Tensor) -> torch.Tensor:
        if x.is_floating_point():
            return x.to(device, dtype)
        return x.to(device)

    return map_tensors(move, inputs)


def call(network: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """Return a network's outputs for a batch's inputs, of which a `Named` one has keywords."""
    if inputs and isinstance(inputs[-1], Named):
        return network(*inputs[:-1], **inputs[-1])
    return network(*inputs)


def map_tensors(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """Return a tree of the same form with ``function`` of each tensor."""
    import torch

    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        branches = {key: map_tensors(function, value) for key, value in tree.items()}
        if isinstance(tree, Named):
            return Named(branches)
        return branches  # other mappings may not be made from a dict
    if isinstance(tree, list | tuple):
        items = [map_tensors(function, value) for value in tree]
        kind: Any = type(tree)
        if hasattr(tree, "_fields"):  # a named tuple
            return kind(*items)
        return kind(items)
    return tree


def list_tensors(tree: Any) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from list_tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from list_tensors(value)


def all_finite(tree: Any) -> torch.Tensor:
    """Return a tensor that is True if all values of a tree's floating-point tensors are finite."""
    import torch

    checks = [
        x.detach().isfinite().all().reshape(()) for x in list_tensors(tree) if x.is_floating_point()
    ]
    if not checks:
        return torch.tensor(True)
    return torch.stack(checks).all()
