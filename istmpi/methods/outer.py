"""The outer step: a round's change of the weights, taken as a gradient (DiLoCo, arXiv 2311.08105).

    velocity <- momentum * velocity + change
    weights  <- start + lr * (change + momentum * velocity)          Nesterov's momentum

With lr 1 and no momentum the weights are where the round led, bit for bit.
"""

from collections.abc import Mapping, MutableMapping

import torch

from istmpi.engine.slots import Slot, weights_among
from istmpi.methods.spec import START, VELOCITY

Tensors = Mapping[str, torch.Tensor]


class Outer:
    """The outer optimizer of a run; ``start``: the weights from before the round under way, none where it idles.

    ``needs_start``: it never idles, for somebody needs the start.
    """

    def __init__(self, lr: float = 1.0, momentum: float = 0.0, needs_start: bool = False):
        self.lr, self.momentum, self._needs_start = lr, momentum, needs_start
        self.start: dict[str, torch.Tensor] = {}

    @property
    def idle(self) -> bool:
        """The weights stay where the round led."""
        return self.lr == 1 and self.momentum == 0 and not self._needs_start

    @property
    def slots_inside(self) -> tuple[str, ...]:
        """Those that a stopped round needs beside."""
        return () if self.idle else (START,)

    def begin(self, tensors: MutableMapping[str, torch.Tensor]) -> None:
        """Remember where the round starts; where it was stopped in the middle, that is taken out of ``tensors``."""
        self.start = {}
        for name in () if self.idle else weights_among(list(tensors)):
            stopped = tensors.pop(Slot(name, START), None)
            self.start[name] = tensors[name].clone() if stopped is None else stopped

    @property
    def kept_start(self) -> dict[str, torch.Tensor]:
        """Where the round started, by the names of its slots."""
        return {Slot(name, START): values for name, values in self.start.items()}

    def suspend(self, tensors: MutableMapping[str, torch.Tensor]) -> None:
        """Leave in ``tensors`` where the round started."""
        tensors.update(self.kept_start)
        self.start = {}

    def step(self, tensors: Tensors, trained: Tensors | None = None) -> None:
        """Take the weights among ``tensors`` from where the round led to where the next one starts, in place.

        ``trained``: true for elements that any rank trained; the others stay, and their velocity with them, until they
        are.
        """
        for name, before in self.start.items():
            weight = tensors[name]
            after = torch.lerp(before, weight, self.lr)
            if self.momentum:
                velocity = tensors[Slot(name, VELOCITY)]
                change = velocity * self.momentum + (weight - before)
                velocity.copy_(change if trained is None else torch.where(trained[name], change, velocity))
                after += velocity * (self.lr * self.momentum)
            weight.copy_(after if trained is None else torch.where(trained[name], after, before))
        self.start = {}
