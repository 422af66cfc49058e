"""The mean over ranks of the largest of what each has changed, as SparseLoCo takes it (arXiv 2508.15706).

error  <- feedback * error + (tensor - start)
sent   <- the largest of error, perhaps as 2 bits
error  <- error - sent
tensor <- start + the mean of what all have sent
"""

from __future__ import annotations

import torch

from istmpi.comm import Communicator
from istmpi.engine.few_bits import TopK
from istmpi.engine.packed_sizes import Largest
from istmpi.engine.slots import Slot
from istmpi.engine.store import Tensors

ERROR, START = "error", "last-mean"
"""The kinds of slots for what a rank has not sent yet, and for the last mean: its own, never with the owners."""


class SparseMean:
    """A mean of weights of which ranks send but the largest changes; what is left is added to the next change."""

    def __init__(self, largest: Largest):
        self._largest = largest
        self._errors: dict[str, torch.Tensor] = {}
        self._starts: dict[str, torch.Tensor] = {}

    def begin(self, weights: Tensors, restored: Tensors, targets: Tensors) -> None:
        """Note weights, in host memory, as those before a change; errors are zeros, or those of a checkpoint."""
        for name, values in weights.items():
            start = restored.get(Slot(name, START), values)
            self._starts[name] = start.to(targets[name].device, copy=True)
            error = self._errors.get(name, restored.get(Slot(name, ERROR)))
            self._errors[name] = torch.zeros_like(values) if error is None else error.clone()

    def slots(self, with_starts: bool = False) -> dict[str, torch.Tensor]:
        slots = {Slot(name, ERROR): values for name, values in self._errors.items()}
        return slots | {Slot(name, START): values for name, values in self._starts.items() if with_starts}

    def start_from(self, tensors: Tensors) -> None:
        """Note where the next change begins."""
        for name, start in self._starts.items():
            start.copy_(tensors[name])

    def take(self, tensors: Tensors, communicator: Communicator) -> None:
        """Replace tensors by their means. Collective."""
        starts = self._starts
        for name, start in starts.items():
            self._errors[name].mul_(self._largest.feedback).add_((tensors[name].detach() - start).cpu())
        flat = torch.cat([self._errors[name].view(-1) for name in starts])
        sizes = tuple(start.numel() for start in starts.values())
        codec = TopK(self._largest.top, self._largest.two_bits, sizes)
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
            tensors[name].detach().copy_(start + change.view(start.shape).to(start.device))
