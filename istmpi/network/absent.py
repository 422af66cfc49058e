"""The place of a residual block that a rank does not hold (ResIST, arXiv 2107.00961)."""

from typing import Any

import torch
from torch import nn

from istmpi.trees import map_tensors


class Absent(nn.Module):
    """The identity, in place of a ``block`` that a rank does not hold. Its attributes are the
    block's.

    If the block returns a tuple of length ``outputs``, the result is the input and Nones. ``made``,
    if given, is the result instead.
    """

    def __init__(self, block: nn.Module, outputs: int = 0, made: Any = None):
        super().__init__()
        self.__dict__["_block"] = block  # not registered as a child module
        self._outputs = outputs
        self._made = made

    def __getattr__(self, name: str) -> Any:
        if "_block" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["_block"], name)

    def forward(self, x: Any, *others: Any, **named: Any) -> Any:
        if self._made is not None:
            return copied(self._made)
        if not self._outputs:
            return x
        return (x, *[None] * (self._outputs - 1))


def put(network: nn.Module, path: str, module: nn.Module) -> None:
    """Put ``module`` in the place of the network's module at ``path``."""
    holder, _, key = path.rpartition(".")
    network.get_submodule(holder)._modules[key] = module


def copied(value: Any) -> Any:
    """Copy all tensors of a tree."""
    return map_tensors(torch.Tensor.clone, value)
