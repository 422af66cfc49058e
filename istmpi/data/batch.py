"""A batch: the examples and targets of one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from istmpi.trees import inputs_to, mapped

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Labels:
    """Any number of labels for each example: example i has ``columns[offsets[i] : offsets[i + 1]]``."""

    offsets: torch.Tensor
    columns: torch.Tensor
    """Label numbers of all examples, int64; ``offsets`` is ``[b + 1]``."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> torch.Tensor:
        return self.offsets.diff()

    @property
    def rows(self) -> torch.Tensor:
        import torch

        return torch.repeat_interleave(torch.arange(len(self), device=self.offsets.device), self.counts)

    def to(self, device: torch.device | str) -> Labels:
        return Labels(self.offsets.to(device), self.columns.to(device))


@dataclass(frozen=True)
class Batch:
    """Examples, as inputs for `istmpi.trees.call(network, inputs)`, and their targets."""

    inputs: tuple[Any, ...]
    """The network's arguments: tensors, or trees of tensors."""
    targets: torch.Tensor | Labels | Any
    examples: int

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Batch:
        targets = self.targets
        targets = targets.to(device) if hasattr(targets, "to") else mapped(lambda x: x.to(device), targets)
        return Batch(inputs_to(self.inputs, device, dtype), targets, self.examples)
