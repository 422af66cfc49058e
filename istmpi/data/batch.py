"""What a network gets in one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Batch:
    """Some examples as a network takes them, ``network(*inputs)``, and what it should make of them."""

    inputs: tuple[torch.Tensor, ...]
    targets: torch.Tensor
    examples: int

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Batch:
        """The same batch on a device, those of its inputs that are no whole numbers of that type."""
        inputs = (x.to(device, dtype) if x.is_floating_point() else x.to(device) for x in self.inputs)
        return Batch(tuple(inputs), self.targets.to(device), self.examples)
