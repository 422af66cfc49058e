"""A batch: the examples and targets of one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from istmpi.trees import inputs_to, mapped

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Batch:
    """Examples, as inputs for `istmpi.trees.call(network, inputs)`, and their targets."""

    inputs: tuple[Any, ...]
    """The network's arguments: tensors, or trees of tensors."""
    targets: Any
    """A tensor; for rows with many labels `istmpi.multilabel.Labels`; or a user's tree."""
    examples: int

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Batch:
        targets = self.targets
        targets = (
            targets.to(device)
            if hasattr(targets, "to")
            else mapped(lambda x: x.to(device), targets)
        )
        return Batch(inputs_to(self.inputs, device, dtype), targets, self.examples)
