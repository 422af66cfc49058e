"""SparseLoCo (arXiv 2508.15706): local SGD whose ranks send but the largest values of what they have changed.

After J local steps a rank adds the round's change of its weights to what it could not send before, sends the largest of
every 4,096 values (`istmpi.engine.top_k`), and keeps what the others do not get of it:

    error  <- feedback * error + (local - start)
    sent   <- the largest of error, perhaps as 2 bits
    error  <- error - sent
    start  <- start + outer step of the mean of what all have sent

The optimizer's state and the error are each rank's own, and never reset.
"""

from collections.abc import Mapping

import torch

from istmpi.devices import copy_from_host, on_host
from istmpi.engine.slots import Slot, weights_among
from istmpi.engine.top_k import TopK
from istmpi.methods.base import InterruptedRound, Job
from istmpi.methods.local_sgd import LocalSGD
from istmpi.methods.outer import Outer

ERROR = "error"
"""The slot of what a rank has not sent yet."""


class SparseLoCo(LocalSGD):
    """Local steps; what all send, each to all others, and the outer step."""

    def __init__(self, job: Job):
        super().__init__(job)
        self.outer = Outer(*self.spec.outer(job.run), needs_start=True)
        self._errors: dict[str, torch.Tensor] = {}
        self._before: dict[str, torch.Tensor] = {}

    def begin(self, round: int, resume_from: InterruptedRound) -> None:
        first = not self.tensors
        super().begin(round, resume_from)
        if first:
            resumed = resume_from.tensors
            nothing = {name: torch.zeros_like(values, device="cpu") for name, values in self.outer.start.items()}
            self._errors = {name: resumed.get(Slot(name, ERROR), values) for name, values in nothing.items()}
        self._before = {name: self.tensors[name].clone() for name in self._state()}

    def end(self, round: int) -> None:
        with self.job.clock("all-reduce"):
            self._exchange()
        self.outer.step(self.tensors)
        self.store_rows()
        self._before = {}

    def suspend(self, round: int) -> Mapping[str, torch.Tensor]:
        return {**super().suspend(round), **self._named_errors()}

    def go_back(self) -> None:
        copy_from_host(self._before, {name: self.tensors[name] for name in self._before})

    def own(self) -> Mapping[str, torch.Tensor]:
        if not self.tensors:
            return {}
        return self._named_errors() | on_host({name: self.tensors[name] for name in self._state()})

    def _named_errors(self) -> dict[str, torch.Tensor]:
        return {Slot(name, ERROR): values for name, values in self._errors.items()}

    def _state(self) -> list[str]:
        slots = self.spec.optimizer_slots(self.job.run)
        return [Slot(name, slot) for name in weights_among(self.job.store.parameters) for slot in slots]

    def _exchange(self) -> None:
        """Have in the weights where the mean of what all ranks send leads to."""
        settings, communicator, starts = self.job.run.method, self.job.communicator, self.outer.start
        for name, start in starts.items():
            self._errors[name].mul_(settings.feedback).add_((self.tensors[name] - start).cpu())
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
            self.tensors[name].copy_(start + change.view(start.shape).to(start.device))
