"""The outer step: it uses a round's change of the weights like a gradient (DiLoCo, arXiv
2311.08105).

    velocity <- momentum * velocity + change
    weights  <- start + lr * (change + momentum * velocity)          Nesterov's momentum

With lr 1 and no momentum the outer step leaves the weights unchanged, bit for bit.
"""

import torch

from istmpi.engine.slots import VELOCITY, Slot, select_weights
from istmpi.engine.store import Tensors


class Outer:
    """The outer optimizer of a run. ``start``: the weights before the present round; empty if the
    step is ``idle``."""

    def __init__(self, lr: float = 1.0, momentum: float = 0.0):
        self.lr = lr
        self.momentum = momentum
        self.idle = lr == 1 and momentum == 0
        """True if the outer step leaves the weights unchanged."""
        self.start: dict[str, torch.Tensor] = {}

    def begin(self, tensors: Tensors) -> None:
        """Keep the weights in ``tensors`` as the round's ``start``."""
        self.start = {}
        if self.idle:
            return
        # decision 71: ranks send changes since this start, so that momentum adds up no roundings.
        for name in select_weights(tensors):
            self.start[name] = tensors[name].clone()

    def step(self, tensors: Tensors, trained: Tensors | None = None) -> None:
        """Replace a round's resulting weights in ``tensors`` by the next round's start, in place;
        update velocities.

        ``trained``: a mask for each weight, true for elements that a rank trained; None for all
        elements. Others go back to ``start``, and keep their velocity.
        """
        for name, before in self.start.items():
            weight = tensors[name]
            mask = None
            if trained is not None:
                mask = trained[name]
            after = torch.lerp(before, weight, self.lr)
            if self.momentum:
                velocity = tensors[Slot(name, VELOCITY)]
                change = velocity * self.momentum + (weight - before)
                velocity.copy_(_select(mask, change, velocity))
                after += velocity * (self.lr * self.momentum)
            weight.copy_(_select(mask, after, before))
        self.start = {}


def _select(mask: torch.Tensor | None, values: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return ``values`` where the mask is true or missing, ``others`` elsewhere."""
    if mask is None:
        return values
    return torch.where(mask, values, others)
