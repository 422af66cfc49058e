"""A batch: the examples and targets of one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from istmpi.trees import inputs_to, map_tensors

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
        inputs = inputs_to(self.inputs, device, dtype)
        # Targets keep their type: classes are integers whatever a network computes in.
        if hasattr(self.targets, "to"):
            return Batch(inputs, self.targets.to(device), self.examples)
        targets = map_tensors(lambda tensor: tensor.to(device), self.targets)
        return Batch(inputs, targets, self.examples)
