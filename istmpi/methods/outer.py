"""The outer step: a round's change of the weights, taken as a gradient (DiLoCo, arXiv 2311.08105).

    velocity <- momentum * velocity + change
    weights  <- start + lr * (change + momentum * velocity)          Nesterov's momentum

With lr 1 and no momentum the weights are where the round led, bit for bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from istmpi.config import Run

VELOCITY = "velocity"
"""The slot in the store, where there is momentum."""
START = "start"
"""The slot of the weights from before the round, only while a round is stopped in the middle."""

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Outer:
    """The outer optimizer of a run."""

    lr: float
    momentum: float

    @staticmethod
    def of(run: Run) -> "Outer":
        """As the run says, or else as its method does."""
        return Outer(*run.method.outer)

    @property
    def idle(self) -> bool:
        """The weights stay where the round led."""
        return self.lr == 1 and self.momentum == 0

    @property
    def slots(self) -> tuple[str, ...]:
        return (VELOCITY,) if self.momentum else ()

    def step(self, start: Tensors, tensors: Tensors, trained: Tensors | None = None) -> None:
        """Take the weights among ``tensors`` from where the round led to where the next one starts, in place.

        ``start``: the weights from before the round. ``trained``: true for elements that any rank trained; the others
        stay, and their velocity with them, until they are.
        """
        for name, before in start.items():
            weight = tensors[name]
            after = torch.lerp(before, weight, self.lr)
            if self.momentum:
                velocity = tensors[f"{name}/{VELOCITY}"]
                change = velocity * self.momentum + (weight - before)
                velocity.copy_(change if trained is None else torch.where(trained[name], change, velocity))
                after += velocity * (self.lr * self.momentum)
            weight.copy_(after if trained is None else torch.where(trained[name], after, before))
