"""A batch: the input of a network in one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Labels:
    """Any number of labels for each example: example i has ``columns[offsets[i] : offsets[i + 1]]``."""

    offsets: torch.Tensor
    columns: torch.Tensor
    """Numbers of labels, int64; offsets are ``[b + 1]``."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> torch.Tensor:
        return self.offsets.diff()

    @property
    def rows(self) -> torch.Tensor:
        """The example that each of ``columns`` belongs to."""
        import torch

        return torch.repeat_interleave(torch.arange(len(self), device=self.offsets.device), self.counts)

    def to(self, device: torch.device | str) -> Labels:
        return Labels(self.offsets.to(device), self.columns.to(device))


@dataclass(frozen=True)
class Batch:
    """Some examples as a network takes them, ``network(*inputs)``, and its targets."""

    inputs: tuple[torch.Tensor, ...]
    targets: torch.Tensor | Labels
    examples: int

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Batch:
        """Return the batch on a device, its inputs of floats in a type."""
        inputs = (x.to(device, dtype) if x.is_floating_point() else x.to(device) for x in self.inputs)
        return Batch(tuple(inputs), self.targets.to(device), self.examples)
