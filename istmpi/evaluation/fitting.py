"""Numbers of the full network that are fitted on all ranks: factors of its sums, and the
temperature of its logits.

Adam finds a factor for each unit group that minimises the training loss. The temperature minimises
the cross-entropy: a classifier's probabilities are then about as often right as they say (Guo et
al. 2017, arXiv 1706.04599). The temperature would be 0 if all examples were classified correctly,
so targets are smoothed by 1/(n+2), as by Platt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
import torch

from istmpi.comm import Communicator
from istmpi.data.batch import Batch
from istmpi.engine.store import ParameterStore
from istmpi.evaluation.full import FullNetwork
from istmpi.models.architecture import Architecture
from istmpi.models.table import power_of
from istmpi.trees import call

if TYPE_CHECKING:
    from istmpi.exits import Outputs

STEPS = 20
RATE = 0.1
"""The first step of a factor's logarithm, which changes the factor by about a tenth. Later steps
are smaller."""
_DECAYS = 0.9, 0.99
COLDEST, HOTTEST = 0.05, 20.0
HALVINGS = 40


def fitted_scale(
    architecture: Architecture,
    store: ParameterStore,
    communicator: Communicator,
    batch: Batch,
    loss: Callable[[Outputs], torch.Tensor],
) -> dict[str, float]:
    """Find the factors of least loss over all ranks' batches: `STEPS` steps from the store's
    factors. Collective.

    ``loss``: a function of the network's outputs that returns the summed loss of this rank's batch.
    """
    bare = copy(store)
    bare.scale = bare.fitted = {}
    network = FullNetwork(architecture, bare, communicator)
    network.with_weights()
    names = sorted(store.scale)
    logarithms = np.log([store.full_scale[name] for name in names])
    factors = torch.ones(len(names), dtype=torch.float64, requires_grad=True)

    def factor(groups: Iterable[str]) -> torch.Tensor | float:
        chosen = []
        for group, power in map(power_of, groups):
            if group in names:
                chosen.append(factors[names.index(group)] ** power)
        return torch.stack(chosen).prod() if chosen else 1.0

    architecture.multiply(network.module, architecture.lengths, factor)
    best, least = logarithms, np.inf
    mean, square = np.zeros(len(names)), np.zeros(len(names))
    for step in range(1, STEPS + 1):
        factors.data = torch.from_numpy(np.exp(logarithms))
        factors.grad = None
        total = loss(call(network.module, batch.inputs))
        total.backward()
        sums = communicator.allreduce_sum(
            np.array([total.item(), batch.examples, *(factors.grad * factors.detach())])
        )
        value, gradient = sums[0] / sums[1], sums[2:] / sums[1]
        if not np.isfinite(gradient).all():
            break
        if value < least:
            best, least = logarithms, value
        mean = _DECAYS[0] * mean + (1 - _DECAYS[0]) * gradient
        square = _DECAYS[1] * square + (1 - _DECAYS[1]) * gradient**2
        corrected = square / (1 - _DECAYS[1] ** step)
        rate = RATE * (1 - (step - 1) / STEPS)
        logarithms = logarithms - rate * mean / (1 - _DECAYS[0] ** step) / (
            np.sqrt(corrected) + 1e-12
        )
    network.release()
    best = communicator.broadcast_from_root(best)  # all ranks have the same bits
    return {name: float(value) for name, value in zip(names, np.exp(best))}


def fitted_temperature(
    logits: torch.Tensor, labels: torch.Tensor, summed: Callable[[np.ndarray], np.ndarray]
) -> float:
    """Fit a temperature to all ranks' logits ``[n, classes]`` float64 and labels ``[n]``; 1 if
    logits are not finite.

    ``summed``: a function that adds up an array over ranks.
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
