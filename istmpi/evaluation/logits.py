"""Logits and labels of the examples to which a classifier's temperature is fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from istmpi.outputs import take_last

if TYPE_CHECKING:
    from istmpi.data.batch import Batch
    from istmpi.outputs import Outputs


class Logits:
    """Logits ``[n, classes]`` float64 and labels ``[n]`` of batches of a split, on the CPU."""

    def __init__(self, split: str, classes: int):
        self.split = split
        # An empty first part, because a rank may have no batch.
        self._logits = [torch.zeros(0, classes, dtype=torch.float64)]
        self._labels = [torch.zeros(0, dtype=torch.int64)]

    def add(self, outputs: Outputs, batch: Batch) -> None:
        self._logits.append(take_last(outputs).double().cpu())
        self._labels.append(batch.targets.cpu())

    def join(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits and labels of all batches."""
        return torch.cat(self._logits), torch.cat(self._labels)
