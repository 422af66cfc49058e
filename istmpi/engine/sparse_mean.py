"""The mean over ranks of each rank's largest changes, as in SparseLoCo (arXiv 2508.15706).

error  <- feedback * error + (tensor - start)
sent   <- the values of error with the largest magnitudes, in 2 bits
error  <- error - sent
tensor <- start + the ranks' mean of sent
"""

import torch

from istmpi.comm import Communicator
from istmpi.comm.host_copies import to_host
from istmpi.engine.few_bits import TopK
from istmpi.engine.packed_sizes import Largest
from istmpi.engine.slots import Slot
from istmpi.engine.store import Tensors

ERROR = "error"
START = "last-mean"
"""The kinds of slots for a rank's unsent changes, and for its values at the last mean. Owners have
neither."""


class SparseMean:
    """A mean of weights for which each rank sends only its largest changes, and keeps the rest for
    later."""

    def __init__(self, largest: Largest):
        self._largest = largest
        self._errors: dict[str, torch.Tensor] = {}
        self._starts: dict[str, torch.Tensor] = {}

    def begin(self, weights: Tensors, restored: Tensors, targets: Tensors) -> None:
        """Copy ``weights`` from host memory to the devices of ``targets``, as the values before a
        change.

        Starts in ``restored``, slots of a checkpoint, replace ``weights``; its errors count if none
        is known yet.
        """
        for name, values in weights.items():
            start = restored.get(Slot(name, START), values)
            self._starts[name] = start.to(targets[name].device, copy=True)
            error = self._errors.get(name, restored.get(Slot(name, ERROR)))
            if error is None:
                self._errors[name] = torch.zeros_like(values)
            else:
                self._errors[name] = error.clone()

    def slots(self, with_starts: bool = False) -> dict[str, torch.Tensor]:
        """Return the unsent changes and, ``with_starts``, the values at the last mean, as slots."""
        slots: dict[str, torch.Tensor] = {}
        for name, values in self._errors.items():
            slots[Slot(name, ERROR)] = values
        if with_starts:
            for name, values in self._starts.items():
                slots[Slot(name, START)] = values
        return slots

    def start_from(self, tensors: Tensors) -> None:
        for name, start in self._starts.items():
            start.copy_(tensors[name])

    def take(self, tensors: Tensors, communicator: Communicator) -> None:
        """Replace each tensor by its start plus the ranks' mean sent change. Collective."""
        starts = self._starts
        for name, start in starts.items():
            change = to_host(tensors[name].detach() - start)
            self._errors[name].mul_(self._largest.feedback).add_(change)
        flat = torch.cat([self._errors[name].view(-1) for name in starts])
        sizes = tuple(start.numel() for start in starts.values())
        # Errors become views of the flat tensor, which frees the old ones.
        for (name, start), part in zip(starts.items(), flat.split(sizes), strict=True):
            self._errors[name] = part.view(start.shape)
        codec = TopK(self._largest.top, sizes)
        sent = codec.encode(flat.split(sizes))
        gathered = communicator.allgatherv(sent.numpy(), [len(sent)] * communicator.size)
        mean = torch.zeros_like(flat)
        for part in torch.from_numpy(gathered).view(communicator.size, -1):
            places, values = codec.decode(part, flat.dtype)
            # Right because a message has each place once.
            mean[places] += values
        mean /= communicator.size
        places, values = codec.decode(sent, flat.dtype)
        # What the 2 bits have lost stays in the error.
        flat[places] -= values
        for (name, start), change in zip(starts.items(), mean.split(sizes), strict=True):
            tensors[name].detach().copy_(start + change.view(start.shape).to(start.device))
