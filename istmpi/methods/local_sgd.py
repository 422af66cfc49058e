"""Local SGD (arXiv 1805.09767): J local steps on every rank's whole network, then the mean of the weights.

With ``optimizer_state = "carry"`` the mean is taken of the optimizer's state, too; else it starts anew every round. An
outer step may follow the mean.
"""

from collections.abc import Sequence

import torch

from istmpi.comm.allreduce import MeanOverRanks
from istmpi.config import Run
from istmpi.methods.base import InterruptedRound
from istmpi.methods.outer import START, VELOCITY, Outer
from istmpi.methods.replicated import ReplicatedMethod


class LocalSGD(ReplicatedMethod):
    """The mean stays on the ranks, which all have it."""

    @classmethod
    def slots(cls, run: Run) -> tuple[str, ...]:
        return (*cls.optimizer_slots(run), *Outer.of(run).slots)

    def run(self, round: int, resume_from: InterruptedRound) -> float | InterruptedRound:
        store, outer = self.job.store, Outer.of(self.job.run)
        self.begin(round, resume_from)
        start = {} if outer.idle else self._start()
        outcome = self.local_steps(self.network, self.optimizer, round, resume_from)
        stopped = isinstance(outcome, InterruptedRound)
        if stopped:
            store.add_slots((*self.optimizer_spec.slots, *([START] if start else [])))
            self.tensors |= {f"{name}/{START}": values for name, values in start.items()}
            outcome.tensors = {name: self.tensors[name].cpu().clone() for name in self._own()}
        else:
            store.drop_slots(except_for=self.slots(self.job.run))
        with self.job.clock("all-reduce"):
            self._average(self._own())
        if not stopped:
            outer.step(start, self.tensors)
        self.store_rows()
        if stopped:
            self.tensors = {}  # to be fetched when the round goes on
        return outcome

    def _start(self) -> dict[str, torch.Tensor]:
        """The weights from before the round, which may have been stopped in the middle."""
        weights = {name: values.detach() for name, values in self.network.named_parameters()}
        stored = {name: self.tensors.pop(f"{name}/{START}", None) for name in weights}
        return {name: weights[name].clone() if values is None else values for name, values in stored.items()}

    def _own(self) -> list[str]:
        """What each rank has its own values of, at the end of its local steps."""
        return [name for name in self.job.store.parameters if name.rpartition("/")[2] not in (VELOCITY, START)]

    def _average(self, names: Sequence[str]) -> None:
        tensors = {name: self.tensors[name] for name in names}
        mean = MeanOverRanks({name: values.nbytes for name, values in tensors.items()}, self.job.communicator)
        for name, values in tensors.items():
            mean.add(name, values)
        mean.finish()
