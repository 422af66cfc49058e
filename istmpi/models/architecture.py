"""What the engine needs to know of a network: its parameters' axes, and how to build it at any width.

An architecture knows nothing of ranks, deals or MPI. It is described without torch, so that a login node can plan with
it; torch is imported when a network is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from istmpi.axes import Parameter

if TYPE_CHECKING:
    from torch import nn


class Architecture(ABC):
    """A network as a chain of stages; a stage is named by the axis of its output.

    ``lengths``: the full length of every axis. ``parameters``: every parameter by its name in the built network, which
    starts with its stage's name. ``groups``: the unit groups that may be dealt out. ``stages``: from input to output.
    ``batch_norms``: the stages that normalise over the batch, whose moments are calibrated. ``normalised``: the stages
    with any normalisation. ``stochastic``: training draws random numbers (dropout).
    """

    lengths: dict[str, int]
    parameters: dict[str, Parameter]
    groups: tuple[str, ...]
    stages: tuple[str, ...]
    batch_norms: tuple[str, ...]
    normalised: tuple[str, ...] = ()
    stochastic: bool

    @classmethod
    @abstractmethod
    def from_settings(cls, features: int, labels: int, task: str, settings: object) -> Architecture:
        """The network that a run's model section describes."""

    @abstractmethod
    def stage(self, name: str, lengths: Mapping[str, int]) -> nn.Sequential:
        """One stage at the given lengths, any lengths, not only the full ones.

        Its first layer is a product with weights whose rows are the stage's units; the layers behind it act on every
        unit, or normalise over the units. So the full network can be evaluated with the rows spread over ranks.
        """

    def build(self, lengths: Mapping[str, int]) -> nn.Sequential:
        """The network at the given lengths: every parameter has exactly the shape that its pattern gives."""
        from torch import nn

        return nn.Sequential(OrderedDict((name, self.stage(name, lengths)) for name in self.stages))
