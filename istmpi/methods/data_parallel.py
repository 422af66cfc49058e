"""Synchronous data parallel training: every rank has the whole network, gradients are averaged in every step."""

from collections.abc import Callable

import torch
from torch import nn

from istmpi.config import Run
from istmpi.devices import copy_from_host, empty_on_host, on_host
from istmpi.methods.base import Job, Method, Partial
from istmpi.optimizers import recipe
from istmpi.partition import Partition
from istmpi.transfer import Transfer


class DataParallel(Method):
    """The mean of the gradients is a push to the owners and a pull from them: 2(P-1)/P of the network in each step.

    The network and its optimizer stay on the ranks from round to round; their state is never reset.
    """

    def __init__(self, job: Job):
        super().__init__(job)
        store = job.store
        whole = Partition(store.owners.lengths, {}, store.owners.ranks)
        self._gather_all = Transfer(store.parameters, store.owners, whole, store.rank)
        parameters = job.architecture.parameters
        self._push = Transfer(parameters, whole, store.owners, store.rank)
        self._pull = Transfer(parameters, store.owners, whole, store.rank)
        self._owned_gradients = {name: torch.empty_like(store.tensors[name]) for name in parameters}
        self._network: nn.Module | None = None
        self._vote: Callable[[], int] | None = None

    @classmethod
    def slots(cls, run: Run) -> tuple[str, ...]:
        return recipe(run.optimizer).slots

    def run(self, round: int, begun: Partial) -> float | Partial:
        if self._network is None:
            self._start(round, begun)
        outcome = self.local_steps(self._network, self._optimizer, round, begun, before_update=self._average_gradients)
        with self.job.clock("push"):
            self.job.store.keep(on_host(self._tensors))
        return outcome

    def asked_to_stop(self, local_step: int) -> bool:
        """All ranks leave before the same step: they ask each other in one what they will do before the next."""
        stop = self._vote is not None and bool(self._vote())
        last = local_step + 1 == self.job.run.method.local_steps
        self._vote = None if stop or last else self.job.communicator.start_maximum(self.job.stop.asked())
        return stop

    def _start(self, round: int, begun: Partial) -> None:
        """Give every rank the network that the store has."""
        with self.job.clock("pull"):
            self._network = self.build(self.job.architecture.lengths)
            self._optimizer, self._tensors = self.optimizer(self._network, round, begun)
            arriving = empty_on_host(self._tensors)
            self._gather_all.run(self.job.store.tensors, arriving, self.job.communicator)
            copy_from_host(arriving, self._tensors)

    def _average_gradients(self) -> None:
        gradients = {name: parameter.grad for name, parameter in self._network.named_parameters()}
        with self.job.clock("push"):
            staged = on_host(gradients)
            self._push.run(staged, self._owned_gradients, self.job.communicator)
        with self.job.clock("pull"):
            self._pull.run(self._owned_gradients, staged, self.job.communicator)
            copy_from_host(staged, gradients)
