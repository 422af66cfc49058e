"""Local SGD (arXiv 1805.09767): J local steps on every rank's whole network, then the mean of the weights.

With ``optimizer_state = "carry"`` the mean is taken of the optimizer's state, too; else it starts anew every round. An
outer step may follow the mean.
"""

from collections.abc import Iterable, Mapping

import torch

from istmpi.comm.allreduce import MeanOverRanks
from istmpi.comm.codec import Wire
from istmpi.engine.slots import without
from istmpi.methods.base import InterruptedRound
from istmpi.methods.replicated import ReplicatedMethod
from istmpi.methods.spec import START, VELOCITY


class LocalSGD(ReplicatedMethod):
    """Local steps; mean and outer step, which stay on the ranks: all have them."""

    def begin(self, round: int, resume_from: InterruptedRound) -> None:
        super().begin(round, resume_from)
        self.outer.begin(self.tensors)

    def end(self, round: int) -> None:
        self._average(self._own(), self.wire(round, "mean"))
        self.outer.step(self.tensors)
        self.store_rows()

    def suspend(self, round: int) -> Mapping[str, torch.Tensor]:
        own = {name: self.tensors[name].cpu().clone() for name in self._own()}
        self._average(own)
        self.outer.suspend(self.tensors)
        self.store_rows()
        self.tensors = {}  # to be fetched when the round goes on
        return own

    def _own(self) -> list[str]:
        return without(self.job.store.parameters, VELOCITY, START)

    def _average(self, names: Iterable[str], wire: Wire | None = None) -> None:
        tensors = {name: self.tensors[name] for name in names}
        nbytes = {name: values.nbytes for name, values in tensors.items()}
        with self.job.clock("all-reduce"):
            encoded = (self.forms(tensors), wire.key) if wire else ()
            mean = MeanOverRanks(nbytes, self.job.communicator, *encoded)
            for name, values in tensors.items():
                mean.add(name, values)
            mean.finish()
