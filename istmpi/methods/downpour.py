"""Downpour SGD (Dean et al. 2012): a rank's changes go to a parameter server while the rank trains
on.

A round's changes are sent in the background of the next round. So other ranks' changes are one
round old when they arrive, and two rounds old when the next changes arrive: staleness is J to 2J
local steps, whatever the timing.

    server <- server + mean over ranks of their changes in the round before
    x_i    <- server + this rank's change in this round

Every rank has the server's values.
"""

import torch

from istmpi.comm.allreduce import MeanOverRanks
from istmpi.engine.slots import Slot, select_weights
from istmpi.engine.store import Tensors
from istmpi.methods.replicated import ReplicatedMethod


class Downpour(ReplicatedMethod):
    """A method in which every rank has its own network; `publish` stores the server's values."""

    def after_fetch(self) -> None:
        tensors = self.subnet.tensors
        self._server = {name: tensors[name].clone() for name in select_weights(tensors)}
        self._changed = {name: torch.zeros_like(values) for name, values in self._server.items()}

    def each_rank(self) -> dict[str, torch.Tensor]:
        return super().each_rank() | {
            Slot(name, "changed"): values for name, values in self._changed.items()
        }

    def begin(self, number: int) -> None:
        super().begin(number)
        self._arriving = {name: values.clone() for name, values in self._changed.items()}
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
            self._changed[name].copy_(weights - self._start[name])
            server += self._arriving[name]
            weights.copy_(server + self._changed[name])

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
