"""SparseLoCo (arXiv 2508.15706): local SGD whose ranks send but the largest values of what they have changed.

After J local steps ranks take an `istmpi.engine.sparse_mean`, and an outer step of what it leads to. The optimizer's
state and the error are each rank's own, and never reset.
"""

import torch

from istmpi.engine.outer import Outer
from istmpi.engine.packed_sizes import Largest
from istmpi.engine.slots import Slot, weights_among
from istmpi.engine.sparse_mean import SparseMean
from istmpi.methods.job import Job
from istmpi.methods.replicated import ReplicatedMethod


class SparseLoCo(ReplicatedMethod):
    """A method of local steps, an exchange of the largest values of all with all, and an outer step."""

    def __init__(self, job: Job):
        super().__init__(job)
        self._outer = Outer(*self.spec.outer(job.run), needs_start=True)
        self._mean = SparseMean(Largest.of(job.run.method))

    def begin(self, number: int) -> None:
        super().begin(number)
        tensors = self.subnet.tensors
        self._outer.begin({name: tensors[name] for name in weights_among(tensors)})

    def fetched(self) -> None:
        tensors = self.subnet.tensors
        self._mean.begin({name: tensors[name] for name in weights_among(tensors)}, {})

    def each_rank(self) -> dict[str, torch.Tensor]:
        state = {name: values for name, values in self.subnet.tensors.items() if isinstance(name, Slot)}
        return state | self._mean.slots

    def exchange(self, number: int) -> None:
        tensors, self._start = self.subnet.tensors, {}  # nothing is rolled back any more: that memory is needed here
        with self.job.clock("all-reduce"):
            self._mean.take(tensors, self._outer.start, self.job.communicator)
        self._outer.step(tensors | self.shards.alike)
        self.shards.keep(tensors | self.shards.alike)

    def rollback(self) -> None:
        super().rollback()
        for name, values in self._outer.start.items():
            self.subnet.tensors[name].copy_(values)
