"""Codistillation (Anil et al. 2018, arXiv 1804.03235): every rank trains its own network, which
learns from the others.

After a burn-in the loss is the cross-entropy with the labels plus the cross-entropy with the mean
prediction of the other ranks' networks at the beginning of the round. The network of rank 0 is
evaluated. If networks have several outputs, all outputs learn from the predictions of the last.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from istmpi.data.batch import Batch
from istmpi.engine.slots import select_weights
from istmpi.engine.store import Tensors
from istmpi.methods.job import Job
from istmpi.methods.replicated import ReplicatedMethod
from istmpi.outputs import take_last


class Codistillation(ReplicatedMethod):
    """A method that fetches the other ranks' networks each round after ``burn_in``; it keeps the
    optimizer's state."""

    def __init__(self, job: Job):
        super().__init__(job)
        self._others: list[dict[str, torch.Tensor]] = []

    def begin(self, number: int) -> None:
        super().begin(number)
        if number >= self.settings.burn_in:
            tensors = self.of_this_rank()
            self._fetch_others({name: tensors[name] for name in select_weights(tensors)})

    def exchange(self, number: int) -> None:
        self._others = []

    def rollback(self) -> None:
        super().rollback()
        self._others = []

    def fill_store(self) -> None:
        self.give_mean((0,))  # a mean over rank 0 alone: its network is evaluated

    def objective(self, network: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = self.forward(network, batch)
        loss = self.loss(outputs, batch.targets)
        if not self._others:
            return loss, loss
        # Without dropout; normalisation has no running statistics to use.
        network.eval()
        with torch.no_grad():
            predict = self.task.probabilities
            assert predict is not None, "`methods/limits.py` refuses other tasks"
            probabilities = []
            for other in self._others:
                outputs_of_other = self.forward(_with(network, other), batch)
                probabilities.append(predict(take_last(outputs_of_other)))
            first, *rest = probabilities
            mean = sum(rest, start=first) / len(probabilities)
        network.train()
        return loss + self.loss(outputs, mean), loss

    def _fetch_others(self, weights: Tensors) -> None:
        communicator = self.job.communicator
        everyone: list[dict[str, torch.Tensor]] = [{} for _ in range(communicator.size)]
        with self.job.clock("pull"):
            for name, values in weights.items():
                counts = [values.numel()] * communicator.size
                gathered = communicator.allgatherv(values.view(-1).numpy(), counts)
                parts = np.split(gathered, communicator.size)
                for other, flat in zip(everyone, parts, strict=True):
                    other[name] = torch.from_numpy(flat).view(values.shape).to(self.job.device)
        del everyone[communicator.rank]
        self._others = everyone


def _with(network: nn.Module, weights: Tensors) -> Callable[..., torch.Tensor]:
    return lambda *inputs, **named: functional_call(network, dict(weights), inputs, named)
