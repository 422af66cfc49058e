"""Synchronous data parallel training: every rank has the whole network, and every step averages the
gradients."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from istmpi import rng
from istmpi.comm.allreduce import MeanOverRanks
from istmpi.data.batch import Batch
from istmpi.engine.wire import choose_forms
from istmpi.errors import ConfigError
from istmpi.methods.job import Job
from istmpi.methods.replicated import ReplicatedMethod
from istmpi.network.linear import linear_layers


class DataParallel(ReplicatedMethod):
    """A method that averages each gradient once it is computed, and never resets the optimizer's
    state."""

    def __init__(self, job: Job):
        super().__init__(job)
        self._mean: MeanOverRanks | None = None
        self._vote: Callable[[], int] | None = None
        self._counted: bool | None = None
        """True if a user's loss returns sums and counts; None before the first step."""

    def begin(self, number: int) -> None:
        super().begin(number)
        self._first = self.first_step(number)
        if self._mean is None:
            self._mean = self._hand_over_gradients()

    def each_rank(self) -> dict[str, torch.Tensor]:
        return {}  # all ranks have the same values

    def exchange(self, number: int) -> None:
        self.shards.keep(self.subnet.tensors)

    def rollback(self) -> None:
        self.subnet.release()  # the next round fetches the values from before this one from their owners

    def leaves(self, local_step: int, steps: int) -> bool:
        """Return True if all ranks stop before this local step; the ranks voted during the previous
        step."""
        stop = self._vote is not None and bool(self._vote())
        last = local_step + 1 == steps
        self._vote = (
            None
            if stop or last
            else self.job.communicator.start_allreduce_max(self.job.stop.asked())
        )
        self._mean.key = rng.key(
            self.job.run.train.seed, "wire", "gradient", self._first + local_step
        )
        return stop

    def _hand_over_gradients(self) -> MeanOverRanks:
        network = self.subnet.network
        parameters = dict(network.named_parameters())
        nbytes = {name: values.nbytes for name, values in parameters.items()}
        kinds = choose_forms(
            self.spec.wire(self.job.run),
            {name: self.job.store.parameters[name] for name in parameters},
        )
        mean = MeanOverRanks(nbytes, self.job.communicator, kinds)
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(
                lambda values, name=name: self._add(name, values.grad)
            )
        for name, layer in linear_layers(network):
            layer.made = lambda made, name=f"{name}.weight", weight=layer.weight: self._add(
                name, weight.grad, made
            )
        return mean

    def _add(self, name: str, gradient: torch.Tensor, made: int | None = None) -> None:
        if self.hands_over:
            self._mean.add(name, gradient, made)

    def objective(self, network: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values of `Method.objective`. A user's pairs (sum, count) are weighed by all
        ranks' counts.

        The mean of the ranks' gradients is then that of the joined batches. Raises ConfigError on
        every rank if the user's loss returns pairs on some ranks only.
        """
        minimised, loss = super().objective(network, batch)
        if not self._amounts:
            return minimised, loss
        counts = [amount.count for amount in self._amounts.values() if not amount.is_mean]
        communicator = self.job.communicator
        if self._counted is None:
            with communicator.agreed():
                lengths = communicator.allgather(len(counts))
                if len(set(lengths)) > 1:
                    raise ConfigError(
                        "the loss returns pairs (sum, count) on some ranks only. Return one form."
                    )
            self._counted = bool(counts)
        if not counts:
            return minimised, loss
        with self.job.clock("all-reduce"):
            totals = np.sum(communicator.allgather(counts), axis=0).tolist()
        terms = []
        for amount in self._amounts.values():
            total = 0.0 if amount.is_mean else totals.pop(0)
            terms.append(amount.value * (communicator.size / total) if total else amount.mean)
        return sum(terms), loss

    def before_update(self) -> None:
        for name, parameter in self.subnet.network.named_parameters():
            if parameter.grad is None:  # a user's network may not use it in every step
                parameter.grad = torch.zeros_like(parameter)
            if not self._mean.has(name):
                self._mean.add(name, parameter.grad)
        with self.job.clock("all-reduce"):
            self._mean.finish()
