"""The temperature of a classifier's logits, with which its probabilities are about as often right as they say.

It minimises the cross-entropy (Guo et al. 2017, arXiv 1706.04599). It would be 0 where all examples are classified
rightly, so targets are smoothed by 1/(n+2), as Platt did.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

COLDEST, HOTTEST = 0.05, 20.0
HALVINGS = 40


def fitted_temperature(logits: torch.Tensor, labels: torch.Tensor, summed: Callable[[np.ndarray], np.ndarray]) -> float:
    """The temperature for logits ``[n, classes]`` float64 and their labels ``[n]``, those of other ranks included.

    ``summed``: the sum over ranks of an array. 1 where logits are not finite.
    """
    count, classes = float(summed(np.array([float(len(labels))]))[0]), logits.shape[1]
    smoothing = 1 / (count + 2)
    targets = torch.full_like(logits, smoothing / classes)
    targets[torch.arange(len(labels)), labels] += 1 - smoothing
    low, high = np.log(1 / HOTTEST), np.log(1 / COLDEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        odds = torch.softmax(logits * np.exp(middle), dim=1)
        slope = float(summed(np.array([float(((odds - targets) * logits).sum())]))[0])
        if not np.isfinite(slope):
            return 1.0
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(np.exp(-(low + high) / 2))
