"""Downpour SGD (Dean et al. 2012): a rank's changes go to a parameter server while the rank trains
on.

A round's changes are sent in the background of a later round, by default the next one. So other
ranks' changes are ``s`` rounds old (method.staleness) when they arrive, and a round older when the
next changes arrive: staleness is sJ to (s+1)J local steps, whatever the timing. A server of
stale-synchronous training (Ho et al. 2013) with this bound allows no older changes.

    server <- server + mean over ranks of their changes in the round s rounds before
    x_i    <- server + this rank's changes in the last s rounds

Every rank has the server's values.
"""

from itertools import pairwise

import torch

from istmpi.comm.allreduce import MeanOverRanks
from istmpi.engine.slots import Slot, select_weights
from istmpi.engine.store import Tensors
from istmpi.methods.replicated import ReplicatedMethod


class Downpour(ReplicatedMethod):
    """A method in which every rank has its own network; `publish` stores the server's values."""

    _changed: list[dict[str, torch.Tensor]]
    """This rank's changes of the last rounds, the newest first, which the server does not have."""

    def after_fetch(self) -> None:
        tensors = self.subnet.tensors
        self._server = {name: tensors[name].clone() for name in select_weights(tensors)}
        self._changed = []
        for _ in range(self.settings.staleness):
            zeros = {name: torch.zeros_like(values) for name, values in self._server.items()}
            self._changed.append(zeros)

    def each_rank(self) -> dict[str, torch.Tensor]:
        tensors = super().each_rank()
        for age, changed in enumerate(self._changed):
            # The newest alone has the name that files of a staleness of 1 have.
            kind = f"changed{age or ''}"
            tensors |= {Slot(name, kind): values for name, values in changed.items()}
        return tensors

    def begin(self, number: int) -> None:
        super().begin(number)
        self._arriving = {name: values.clone() for name, values in self._changed[-1].items()}
        nbytes = {name: values.nbytes for name, values in self._arriving.items()}
        self._mean = MeanOverRanks(nbytes, self.job.communicator)
        for name, values in self._arriving.items():
            self._mean.add(name, values)
        self._mean.begin()

    def exchange(self, number: int) -> None:
        with self.job.clock("all-reduce"):
            self._mean.finish()
        for name, server in self._server.items():
            weights = self.subnet.tensors[name]
            newest = weights - self._start[name]
            # In place, from the oldest on: others know the tensors.
            for older, newer in pairwise(reversed(self._changed)):
                older[name].copy_(newer[name])
            self._changed[0][name].copy_(newest)
            server += self._arriving[name]
            weights.copy_(sum((changed[name] for changed in self._changed), server))

    def rollback(self) -> None:
        # It is under way on all ranks, and must end before its buffers are used again.
        self._mean.finish()
        super().rollback()

    def fill_store(self) -> None:
        self.shards.keep(self._server)

    def values_on_all_ranks(self) -> Tensors:
        # Before the first round of a job, only the owners have values.
        if not self.subnet.tensors:
            return {}
        return self._server
