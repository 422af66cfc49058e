"""What those methods share by which every rank has the whole network and keeps it from round to round."""

from collections.abc import Mapping

import torch
from torch import nn

from istmpi.devices import copy_from_host, empty_on_host, on_host
from istmpi.engine.layout import Replicated
from istmpi.engine.transfer import Transfer
from istmpi.errors import DivergedError
from istmpi.methods.base import InterruptedRound, Job, Method
from istmpi.models.linear import release_gradients


class ReplicatedMethod(Method):
    """``network``, ``optimizer`` and ``tensors``: all that belongs to them, by its names in the store."""

    network: nn.Module
    optimizer: torch.optim.Optimizer

    def __init__(self, job: Job):
        super().__init__(job)
        self.tensors: dict[str, torch.Tensor] = {}

    def begin(self, round: int, resume_from: InterruptedRound) -> None:
        """Fetch the network at first; later give it a new optimizer, unless the state of the last is kept."""
        store = self.job.store
        if not self.tensors:
            self.network = self.build(self.job.architecture.lengths)
            self._renew(round, resume_from)
            weights = dict(self.network.named_parameters())
            for name in store.parameters.keys() - self.tensors.keys():
                self.tensors[name] = torch.empty_like(weights[name.rpartition("/")[0]].detach())
            self._fetch(resume_from)
        elif not self.optimizer_slots(self.job.run):
            self._renew(round, resume_from)

    def own_steps(
        self, round: int, resume_from: InterruptedRound, before: Mapping[str, torch.Tensor]
    ) -> float | InterruptedRound:
        """Local steps of a rank whose values are its own; where they diverge, those from ``before`` are back."""
        try:
            outcome = self.local_steps(self.network, self.optimizer, round, resume_from)
        except DivergedError:
            copy_from_host(before, {name: self.tensors[name] for name in before})
            raise
        release_gradients(self.network)
        return outcome

    def store_rows(self) -> None:
        """Leave in the store this rank's rows of what every rank has."""
        with self.job.clock("push"):
            self.job.store.keep(on_host(self.tensors))

    def _fetch(self, resume_from: InterruptedRound) -> None:
        store = self.job.store
        whole = Replicated(store.owners.lengths, store.owners.ranks)
        kept = {name: self.tensors[name] for name in store.parameters}
        with self.job.clock("pull"):
            arriving = empty_on_host(kept)
            pull = Transfer(store.parameters, store.owners, whole, store.rank)
            pull.run(store.tensors, arriving, self.job.communicator)
            copy_from_host(arriving | resume_from.tensors, kept)

    def _renew(self, round: int, resume_from: InterruptedRound) -> None:
        kept = {name: values for name, values in self.tensors.items() if name in self.job.store.parameters}
        self.optimizer, own = self.new_optimizer(self.network, round, resume_from)
        self.tensors = kept | own
