"""Batch normalisation without running statistics, whose moments can be set once the full network is calibrated."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

EPSILON = 1e-5


class BatchNorm(nn.Module):
    """Every unit normalised over the batch, or by ``moments`` where they are set: ``[batch, units]``.

    A unit of a subnet sees fewer inputs than it will in the full network, so running statistics gathered in training
    would be wrong there. `istmpi.evaluate` takes the full network's moments on a sample of the training data.
    """

    def __init__(self, units: int, affine: bool, dtype: torch.dtype | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(units, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.zeros(units, dtype=dtype)) if affine else None
        self.moments: tuple[torch.Tensor, torch.Tensor] | None = None
        """Mean and variance of every unit, ``[units]`` each."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, variance = self.moments or (None, None)
        return functional.batch_norm(
            x, mean, variance, self.weight, self.bias, training=self.moments is None, eps=EPSILON
        )
