"""Adjusts logits for a rank's class frequencies (arXiv 2007.07314), which differ by rank (arXiv
2209.00189).

A rank without adjustment raises the logits of its own frequent classes. In the loss, each class's
logit therefore gets train.logit_adjustment times the log of the class's frequency on the rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from istmpi.data.batches import Batches
from istmpi.trees import map_tensors

if TYPE_CHECKING:
    from istmpi.outputs import Outputs

ABSENT = -1e4
"""The value that replaces log(0): a class without examples on a rank has almost no effect on its
losses."""


class LogitAdjustment:
    def __init__(self, batches: Batches, strength: float):
        self._batches = batches
        self._strength = strength
        self._added: torch.Tensor | None = None

    def __call__(self, outputs: Outputs) -> Outputs:
        if not self._strength:
            return outputs
        return map_tensors(lambda logits: logits + self._added_to(logits), outputs)

    def _added_to(self, logits: torch.Tensor) -> torch.Tensor:
        if self._added is None:
            # Once in a run, because it reads all labels.
            labels = self._batches.labels
            with np.errstate(divide="ignore"):
                shares = np.log(np.bincount(labels, minlength=logits.shape[1]) / len(labels))
            self._added = torch.from_numpy(self._strength * np.maximum(shares, ABSENT)).to(logits)
        return self._added
