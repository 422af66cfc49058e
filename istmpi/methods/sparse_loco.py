"""SparseLoCo (arXiv 2508.15706): local SGD whose ranks send but the largest values of what they have changed.

After J local steps a rank adds the round's change of its weights to what it could not send before, sends the largest of
every 4,096 values (`istmpi.engine.top_k`), and keeps what the others do not get of it:

    error  <- feedback * error + (local - start)
    sent   <- the largest of error, perhaps as 2 bits
    error  <- error - sent
    start  <- start + outer step of the mean of what all have sent

The optimizer's state and the error are each rank's own, and never reset.
"""

import torch

from istmpi.engine.outer import Outer
from istmpi.engine.slots import Slot, weights_among
from istmpi.engine.top_k import TopK
from istmpi.methods.job import Job
from istmpi.methods.replicated import ReplicatedMethod


class SparseLoCo(ReplicatedMethod):
    """A method of local steps, an exchange of the largest values of all with all, and an outer step."""

    def __init__(self, job: Job):
        super().__init__(job)
        self._outer = Outer(*self.spec.outer(job.run), needs_start=True)

    def begin(self, number: int) -> None:
        super().begin(number)
        tensors = self.subnet.tensors
        self._outer.begin({name: tensors[name] for name in weights_among(tensors)})

    def fetched(self) -> None:
        tensors = self.subnet.tensors
        self._errors = {name: torch.zeros_like(tensors[name], device="cpu") for name in weights_among(tensors)}

    def each_rank(self) -> dict[str, torch.Tensor]:
        state = {name: values for name, values in self.subnet.tensors.items() if isinstance(name, Slot)}
        return state | {Slot(name, "error"): values for name, values in self._errors.items()}

    def exchange(self, number: int) -> None:
        tensors, self._start = self.subnet.tensors, {}  # nothing is rolled back any more: that memory is needed here
        with self.job.clock("all-reduce"):
            self._exchange()
        self._outer.step(tensors | self.shards.alike)
        self.shards.keep(tensors | self.shards.alike)

    def rollback(self) -> None:
        super().rollback()
        for name, values in self._outer.start.items():
            self.subnet.tensors[name].copy_(values)

    def _exchange(self) -> None:
        settings, communicator, starts = self.job.run.method, self.job.communicator, self._outer.start
        tensors = self.subnet.tensors
        for name, start in starts.items():
            self._errors[name].mul_(settings.feedback).add_((tensors[name] - start).cpu())
        flat = torch.cat([values.view(-1) for values in self._errors.values()])
        sizes = tuple(values.numel() for values in self._errors.values())
        codec = TopK(settings.top, settings.top_values == "2bit", sizes)
        sent = codec.encode(flat.split(sizes))
        gathered = communicator.allgatherv(sent.numpy(), [len(sent)] * communicator.size)
        mean = torch.zeros_like(flat)
        for part in torch.from_numpy(gathered).view(communicator.size, -1):
            places, values = codec.decode(part, flat.dtype)
            mean[places] += values
        mean /= communicator.size
        places, values = codec.decode(sent, flat.dtype)
        flat[places] -= values
        for (name, start), left, change in zip(starts.items(), flat.split(sizes), mean.split(sizes), strict=True):
            self._errors[name].copy_(left.view(start.shape))
            tensors[name].copy_(start + change.view(start.shape).to(start.device))
