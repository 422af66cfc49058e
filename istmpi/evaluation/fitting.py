"""Numbers of the full network that are fitted on all ranks.

They are factors of its sums, and the temperature of its logits. Adam finds a factor for each unit
group that minimises the training loss. The temperature minimises the cross-entropy: a classifier's
probabilities are then about as often right as they say (Guo et al. 2017, arXiv 1706.04599). The
temperature would be 0 if all examples were classified correctly, so targets are smoothed by
1/(n+2), as by Platt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
import torch

from istmpi.comm import Communicator
from istmpi.config import Train
from istmpi.data.batch import Batch
from istmpi.engine.store import ParameterStore
from istmpi.evaluation.full import FullNetwork
from istmpi.evaluation.halvings import HALVINGS, choose_halvings_at_once
from istmpi.evaluation.own import join_loss
from istmpi.network.architecture import Architecture
from istmpi.network.table import split_power
from istmpi.outputs import LossOfOutputs
from istmpi.tasks import OwnTask, Task
from istmpi.trees import call

if TYPE_CHECKING:
    from istmpi.outputs import Outputs

STEPS = 20
RATE = 0.1
"""The first step of a factor's logarithm, which changes the factor by about a tenth. Later steps
are smaller."""
_DECAY = 0.9
_SQUARE_DECAY = 0.99
"""The decays of Adam's means of gradients and of their squares."""
COLDEST = 0.05
HOTTEST = 20.0
"""The limits of a temperature."""
AT_ONCE = 2**16
"""The most numbers for which one call computes the slopes at several middles: 0.5 MB."""


class _Adam:
    """Adam for a few numbers in float64, with a step size that falls to 0 within `STEPS` steps."""

    def __init__(self, count: int):
        self._mean = np.zeros(count)
        self._square = np.zeros(count)

    def step(self, values: np.ndarray, gradient: np.ndarray, number: int) -> np.ndarray:
        """Return the values after step ``number``, counted from 1."""
        self._mean = _DECAY * self._mean + (1 - _DECAY) * gradient
        self._square = _SQUARE_DECAY * self._square + (1 - _SQUARE_DECAY) * gradient**2
        corrected = self._square / (1 - _SQUARE_DECAY**number)
        rate = RATE * (1 - (number - 1) / STEPS)
        return values - rate * self._mean / (1 - _DECAY**number) / (np.sqrt(corrected) + 1e-12)


def fit_scale(
    architecture: Architecture,
    store: ParameterStore,
    communicator: Communicator,
    batch: Batch,
    loss: Callable[[Outputs], torch.Tensor],
) -> dict[str, float]:
    """Find the factors of least loss over all ranks' batches.

    Collective; it takes `STEPS` steps from the store's factors. ``loss``: a function of the
    network's outputs that returns the summed loss of this rank's batch.
    """
    objective = _Objective(architecture, store, communicator, batch, loss)
    logarithms = np.log([store.full_scale[name] for name in objective.names])
    best = logarithms
    least = np.inf
    adam = _Adam(len(logarithms))
    for step in range(1, STEPS + 1):
        value, gradient = objective.measure(logarithms)
        # The best factors so far are kept.
        if not np.isfinite(gradient).all():
            break
        if value < least:
            best = logarithms
            least = value
        logarithms = adam.step(logarithms, gradient, step)
    objective.network.release()
    best = communicator.broadcast_from_root(best)  # all ranks have the same bits
    return {name: float(value) for name, value in zip(objective.names, np.exp(best))}


def choose_loss(
    task: type[Task], settings: Train, batch: Batch, communicator: Communicator
) -> Callable[[Outputs], torch.Tensor]:
    """Return a function of a network's outputs: a task's summed loss of this rank's batch.
    Collective."""
    loss_of_outputs = LossOfOutputs.from_settings(task.loss, settings)
    examples = 0
    if issubclass(task, OwnTask):
        examples = sum(communicator.allgather(batch.examples))

    def loss(outputs: Outputs) -> torch.Tensor:
        if issubclass(task, OwnTask):
            return join_loss(task.losses(outputs, batch), examples, communicator)
        return loss_of_outputs(outputs, batch.targets, reduction="sum")

    return loss


class _Objective:
    """The loss of the full network as a function of its factors."""

    def __init__(
        self,
        architecture: Architecture,
        store: ParameterStore,
        communicator: Communicator,
        batch: Batch,
        loss: Callable[[Outputs], torch.Tensor],
    ):
        self._communicator = communicator
        self._batch = batch
        self._loss = loss
        # The factors are variables here, so the network is built without any.
        bare = copy(store)
        bare.scale = bare.fitted = {}
        self.network = FullNetwork(architecture, bare, communicator)
        self.network.load_weights()
        self.names = sorted(store.scale)
        self._factors = torch.ones(len(self.names), dtype=torch.float64, requires_grad=True)
        architecture.multiply(self.network.module, architecture.lengths, self._multiply)

    def _multiply(self, groups: Iterable[str]) -> torch.Tensor | float:
        """Return the product of the factors of ``groups``."""
        chosen = []
        for group, power in map(split_power, groups):
            if group in self.names:
                chosen.append(self._factors[self.names.index(group)] ** power)
        if not chosen:
            return 1.0
        return torch.stack(chosen).prod()

    def measure(self, logarithms: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean loss over all ranks, and its gradient by the logarithms. Collective."""
        factors = self._factors
        factors.data = torch.from_numpy(np.exp(logarithms))
        factors.grad = None
        total = self._loss(call(self.network.module, self._batch.inputs))
        total.backward()
        assert factors.grad is not None
        # By the chain rule: a factor is the exponential of its logarithm.
        by_logarithm = factors.grad * factors.detach()
        values = np.array([total.item(), self._batch.examples, *by_logarithm])
        sums = self._communicator.allreduce_sum(values)
        return sums[0] / sums[1], sums[2:] / sums[1]


def fit_temperature(
    logits: torch.Tensor, labels: torch.Tensor, add_up: Callable[[np.ndarray], np.ndarray]
) -> float:
    """Fit a temperature to all ranks' logits ``[n, classes]`` float64 and labels ``[n]``.

    It is 1 if logits are not finite. ``add_up``: a function that adds up an array over ranks.
    """

    count = float(add_up(np.array([float(len(labels))]))[0])
    classes = logits.shape[1]
    smoothing = 1 / (count + 2)  # Platt's, for as many classes as there are
    targets = torch.full_like(logits, smoothing / classes)
    targets[torch.arange(len(labels)), labels] += 1 - smoothing

    def find_slopes(middles: Sequence[float]) -> np.ndarray:
        """Return the slope of the loss at each middle, over all ranks."""
        return add_up(np.array(_slopes_here(logits, targets, middles)))

    at_once = choose_halvings_at_once(count * classes)
    # The loss is convex in 1 / temperature, so its slope has one root.
    low = np.log(1 / HOTTEST)
    high = np.log(1 / COLDEST)
    for _ in range(HALVINGS // at_once):
        middles = list_middles(low, high, at_once)
        slopes = dict(zip(middles, find_slopes(middles), strict=True))
        for _ in range(at_once):
            middle = (low + high) / 2
            if not np.isfinite(slopes[middle]):
                return 1.0
            if slopes[middle] > 0:
                high = middle
            else:
                low = middle
    return float(np.exp(-(low + high) / 2))


def _slopes_here(
    logits: torch.Tensor, targets: torch.Tensor, middles: Sequence[float]
) -> list[float]:
    """Return the slope of this rank's summed loss at each middle."""
    factors = torch.from_numpy(np.exp(middles)).view(-1, 1, 1)
    slopes = []
    for some in factors.split(max(AT_ONCE // max(logits.numel(), 1), 1)):
        odds = torch.softmax(logits * some, dim=2)
        # A sum for each middle: one call for all of them may round in another way.
        slopes += [float(terms.sum()) for terms in (odds - targets) * logits]
    return slopes


def list_middles(low: float, high: float, halvings: int) -> list[float]:
    """Return every middle that so many halvings of a range may reach."""
    if not halvings:
        return []
    middle = (low + high) / 2
    return [
        middle,
        *list_middles(low, middle, halvings - 1),
        *list_middles(middle, high, halvings - 1),
    ]
