"""What those methods share by which every rank has the whole network and keeps it from round to round."""

from abc import abstractmethod
from collections.abc import Mapping

import torch

from istmpi.devices import copy_from_host, empty_on_host, on_host
from istmpi.engine.layout import Replicated
from istmpi.engine.slots import parameter_of, without
from istmpi.engine.transfer import Transfer
from istmpi.methods.base import InterruptedRound, Job, Method
from istmpi.models.linear import release_gradients


class ReplicatedMethod(Method):
    """The network is fetched once; the optimizer is new in every round, unless its state is kept."""

    def begin(self, round: int, resume_from: InterruptedRound) -> None:
        store = self.job.store
        if not self.tensors:
            self.network = self.build(self.job.architecture.lengths)
            self._renew(round, resume_from)
            weights = dict(self.network.named_parameters())
            for name in store.parameters.keys() - self.tensors.keys():
                self.tensors[name] = torch.empty_like(weights[parameter_of(name)].detach())
            self._fetch(resume_from)
        elif not self.spec.optimizer_slots(self.job.run):
            self._renew(round, resume_from)

    def store_rows(self) -> None:
        """Leave in the store this rank's rows of what every rank has."""
        with self.job.clock("push"):
            self.job.store.keep(on_host(self.tensors))

    def publish(self) -> None:
        """The store has the network already; an evaluation may have the place of the gradients meanwhile."""
        if self.tensors:
            release_gradients(self.network)

    def _fetch(self, resume_from: InterruptedRound) -> None:
        store = self.job.store
        whole = Replicated(store.owners.lengths, store.owners.ranks)
        kept = {name: self.tensors[name] for name in store.parameters}
        with self.job.clock("pull"):
            arriving = empty_on_host(kept)
            pull = Transfer(store.parameters, store.owners, whole, store.rank)
            pull.run(store.tensors, arriving, self.job.communicator)
            copy_from_host(arriving | resume_from.tensors, kept)
            self.job.communicator.release_scratch()  # nothing moves like this until the run goes on another time

    def _renew(self, round: int, resume_from: InterruptedRound) -> None:
        kept = {name: values for name, values in self.tensors.items() if name in self.job.store.parameters}
        self.optimizer, own = self.new_optimizer(self.network, round, resume_from)
        self.tensors = kept | own


class OwnNetworks(ReplicatedMethod):
    """The ranks' networks differ between rounds; the store has what is worth evaluating when it is asked for."""

    common_slots: tuple[str, ...] = ()
    """Slots of the store of which all ranks have the same values."""

    def __init__(self, job: Job):
        super().__init__(job)
        self._before: dict[str, torch.Tensor] = {}
        self._published = True

    def begin(self, round: int, resume_from: InterruptedRound) -> None:
        super().begin(round, resume_from)
        self._published = False
        self._before = {name: values.clone() for name, values in self.own().items()}

    def end(self, round: int) -> None:
        release_gradients(self.network)
        self._before = {}

    def suspend(self, round: int) -> Mapping[str, torch.Tensor]:
        release_gradients(self.network)
        self._before = {}
        return self.own()

    def go_back(self) -> None:
        copy_from_host(self._before, {name: self.tensors[name] for name in self._before})

    def own(self) -> Mapping[str, torch.Tensor]:
        names = without(self.job.store.parameters, *self.common_slots) if self.tensors else []
        return on_host({name: self.tensors[name] for name in names})

    def publish(self) -> None:
        if not self._published:
            self.fill_store()
            self._published = True

    @abstractmethod
    def fill_store(self) -> None:
        """Have in the store what is worth evaluating, of the ranks' networks. Collective."""
