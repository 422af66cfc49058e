"""Synchronous data parallel training: every rank has the whole network, and every step averages the
gradients."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

from istmpi import rng
from istmpi.comm.allreduce import MeanOverRanks
from istmpi.data.batch import Batch
from istmpi.engine.slots import select_weights
from istmpi.engine.store import Tensors
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
        self._gradients: MeanOverRanks | None = None
        self._first = 0
        """The number of this round's first local step."""
        self._vote: Callable[[], int] | None = None
        self._counted: bool | None = None
        """True if a user's loss returns sums and counts; None before the first step."""

    def begin(self, number: int) -> None:
        super().begin(number)
        self._first = self.first_step(number)
        if self._gradients is None:
            self._gradients = self._hand_over_gradients()

    @property
    def _mean(self) -> MeanOverRanks:
        if self._gradients is None:
            raise AssertionError("a step needs the mean of gradients, which `begin` makes")
        return self._gradients

    def each_rank(self) -> dict[str, torch.Tensor]:
        return {}  # all ranks have the same values

    def exchange(self, number: int) -> None:
        self.shards.keep(self.subnet.tensors)

    def values_on_all_ranks(self) -> Tensors:
        return {name: self.subnet.tensors[name] for name in select_weights(self.subnet.tensors)}

    def rollback(self) -> None:
        # The next round fetches the values from before this one, which the owners still have.
        self.subnet.release()

    def leaves(self, local_step: int, steps: int) -> bool:
        """Return True if all ranks stop before this local step; the ranks voted during the previous
        step."""
        stop = self._vote is not None and bool(self._vote())
        is_last = local_step + 1 == steps
        self._vote = None
        # After the last step, the round ends anyway.
        if not stop and not is_last:
            # The vote is under way during this step, so that no step waits for it.
            self._vote = self.job.communicator.start_allreduce_max(self.job.stop.asked())
        step = self._first + local_step
        self._mean.key = rng.key(self.seed, "wire", "gradient", step)
        return stop

    def _hand_over_gradients(self) -> MeanOverRanks:
        network = self.subnet.network
        parameters = dict(network.named_parameters())
        nbytes = {name: values.nbytes for name, values in parameters.items()}
        described = {name: self.job.store.parameters[name] for name in parameters}
        forms = choose_forms(self.spec.wire(self.job.run), described)
        mean = MeanOverRanks(nbytes, self.job.communicator, forms)
        if self.job.group:
            # Hooks would see gradients before the mean over the members of the group.
            return mean
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self._add_gradient, name))
        for name, layer in linear_layers(network):
            # Such a layer computes its gradient in blocks, each of which may leave at once.
            layer.made = partial(self._add_rows, f"{name}.weight", layer.weight)
        return mean

    def _add_gradient(self, name: str, parameter: torch.Tensor) -> None:
        if self.hands_over and parameter.grad is not None:
            self._mean.add(name, parameter.grad)

    def _add_rows(self, name: str, weight: torch.Tensor, count: int) -> None:
        """Add the first ``count`` elements of a gradient, which are computed."""
        if self.hands_over and weight.grad is not None:
            self._mean.add(name, weight.grad, count)

    def objective(self, network: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values of `Method.objective`. A user's pairs (sum, count) are weighed by all
        ranks' counts.

        The mean of the ranks' gradients is then that of the joined batches. Raises ConfigError on
        every rank if the user's loss returns pairs on some ranks only.
        """
        minimised, loss = super().objective(network, batch)
        # The leader of a group counts what its members have.
        if not self._amounts or self.job.group:
            return minimised, loss
        counts = [amount.count for amount in self._amounts.values() if not amount.is_mean]
        communicator = self.job.communicator
        if self._counted is None:
            self._require_one_form(len(counts))
            self._counted = bool(counts)
        if not counts:
            return minimised, loss
        with self.job.clock("all-reduce"):
            totals = np.sum(communicator.allgather(counts), axis=0).tolist()
        terms = []
        for amount in self._amounts.values():
            total = 0.0
            if not amount.is_mean:
                total = totals.pop(0)
            if total:
                # The mean of the gradients divides by the number of ranks, which is undone here.
                terms.append(amount.value * (communicator.size / total))
            else:
                terms.append(amount.mean)
        return sum(terms), loss

    def _require_one_form(self, pairs: int) -> None:
        """Raise ConfigError if ranks have different numbers of ``pairs``. Collective."""
        communicator = self.job.communicator
        with communicator.agreed():
            if len(set(communicator.allgather(pairs))) > 1:
                raise ConfigError(
                    "the loss returns pairs (sum, count) on some ranks only. Return one form."
                )

    def before_update(self) -> None:
        mean = self._mean
        for name, parameter in self.subnet.network.named_parameters():
            if parameter.grad is None:
                # A user's network may not use it in every step, but all ranks send the same.
                parameter.grad = torch.zeros_like(parameter)
            if not mean.has(name):
                mean.add(name, parameter.grad)
        with self.job.clock("all-reduce"):
            mean.finish()
