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

ERROR = "error"
"""The kind of slot for what a rank has not sent yet: its own, never with the owners."""


class SparseMean:
    """A mean of weights of which ranks send but the largest changes; what is left is added to the next change."""

    def __init__(self, largest: Largest):
        self._largest = largest
        self.errors: dict[str, torch.Tensor] = {}

    def begin(self, weights: Tensors, restored: Tensors) -> None:
        """Make the errors of these weights unless they are there: zeros, or those of a checkpoint."""
        for name, values in weights.items():
            if name not in self.errors:
                error = restored.get(Slot(name, ERROR))
                self.errors[name] = torch.zeros_like(values, device="cpu") if error is None else error.clone()

    @property
    def slots(self) -> dict[str, torch.Tensor]:
        return {Slot(name, ERROR): values for name, values in self.errors.items()}

    def take(self, tensors: Tensors, starts: Tensors, communicator: Communicator) -> None:
        """Replace tensors that were ``starts`` before by their means. Collective."""
        for name, start in starts.items():
            self.errors[name].mul_(self._largest.feedback).add_((tensors[name].detach() - start).cpu())
        flat = torch.cat([self.errors[name].view(-1) for name in starts])
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
            self.errors[name].copy_(left.view(start.shape))
            tensors[name].detach().copy_(start + change.view(start.shape).to(start.device))
