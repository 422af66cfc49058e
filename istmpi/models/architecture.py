"""What the engine needs to know of a network: its parameters' axes, and how to build it at any width.

An architecture knows nothing of ranks, deals or MPI. It is described without torch, so that a login node can plan with
it; torch is imported when a network is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from istmpi.engine.axes import Parameter, Pattern
from istmpi.models.blocks import Blocks
from istmpi.models.operators import EPSILON, Operator

if TYPE_CHECKING:
    import torch
    from torch import nn

    from istmpi.models.norms import BatchNorm


@dataclass(frozen=True)
class BatchNormalisation:
    """A normalisation over the batch: how many units have a mean and a variance, and what is added to a variance."""

    units: int
    epsilon: float = EPSILON


class Architecture(ABC):
    """A network that can be built at any lengths of its axes.

    ``lengths``: the full length of every axis. ``parameters``: every parameter by its name in the built network.
    ``groups``: the unit groups that may be dealt out. ``batch_norms``: what normalises over the batch, by the name that
    its calibrated moments are saved under. ``operators``: every product of a forward pass. ``normalised``: the axes of
    what each normalisation of any kind makes for an example. ``inexact``: the modules whose operators are told as large
    as in the full network, whatever the lengths. ``sums``: the modules whose product adds up what the units
    of some groups contribute, with no batch normalisation directly behind it, and these groups. ``blocks``: of the
    groups whose units are whole blocks, which a rank has or has not, these. ``leaves``: the modules that can be
    evaluated with the rows of their parameters spread over ranks, and the names of these. ``exits``: how many outputs a
    forward pass returns (`istmpi.exits`). ``head``: the leaf whose outputs these are as they stand, if there is one.
    ``stochastic``: training draws random numbers (dropout).
    """

    lengths: dict[str, int]
    parameters: dict[str, Parameter]
    groups: tuple[str, ...]
    batch_norms: Mapping[str, BatchNormalisation]
    operators: tuple[Operator, ...]
    normalised: tuple[Pattern, ...] = ()
    inexact: tuple[str, ...] = ()
    sums: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    blocks: Blocks = MappingProxyType({})
    leaves: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    exits: int = 1
    head: str = ""
    stochastic: bool
    nodes: tuple[float, int] = (1, 0)
    """Of a graph, of which a node is an example here: the nodes of what a batch counts, and all of them."""
    unitwise: bool = False
    """Of a graph: between its leaves, one for each group or two, is nothing that `istmpi.evaluation.spread_units` does
    not know, and its last layer makes the outputs."""

    @property
    def default_groups(self) -> tuple[str, ...]:
        """The unit groups that are dealt out unless a run names others."""
        return self.groups

    @property
    @abstractmethod
    def example_shape(self) -> tuple[int, ...]:
        """The shape of an example as its ``forward`` gets it."""

    @abstractmethod
    def build(self, lengths: Mapping[str, int], scale: Mapping[str, float] | None = None) -> nn.Module:
        """The network at the given lengths: every parameter has exactly the shape that its pattern gives.

        Its products are multiplied by their `factor`, and what blocks add by their `contribution`, where ``scale`` is
        given, else by nothing.
        """

    @abstractmethod
    def without_values(self, scale: Mapping[str, float], lengths: Mapping[str, int] | None = None) -> nn.Module:
        """The network as `build` makes it, by default the full one, its parameters on the meta device if it can be."""

    @abstractmethod
    def batch_norm_layers(self, network: nn.Module) -> dict[str, BatchNorm]:
        """The layers of a built network that normalise over the batch, by the names that ``batch_norms`` has."""

    @property
    @abstractmethod
    def outline(self) -> str:
        """The widths of the network, in a few words."""

    def product(self, network: nn.Module, name: str) -> nn.Module:
        """The module of a built network that makes one of the ``sums``."""
        return network.get_submodule(name)

    def require_dealable(self, groups: tuple[str, ...]) -> None:
        """Refuse, with a ConfigError, to deal out these groups, or names, where that cannot be trained."""
        return

    def require_usable(self, lengths: Mapping[str, int]) -> None:
        """Refuse, with a ConfigError, lengths at which the network cannot be built and run."""
        return

    def require_finite(self, *inputs: torch.Tensor) -> torch.Tensor | None:
        """Refuse, with a ConfigError, a network that cannot say anything finite of this batch's inputs at first.

        Returns what it makes of them, with the same weights in every call; None where it is not tried.
        """
        return None

    def factor(self, module: str, lengths: Mapping[str, int], scale: Mapping[str, float]) -> float:
        """What a module's product (not its bias) is multiplied by at the given lengths.

        ``scale`` is for each unit group what the full network multiplies the contributions of its units by: the share
        of them that a subnet has while it trains, as with dropout. A network with fewer units multiplies by as much
        more. A group that is not named has 1. So the sums are as large in the full network as in any subnet; behind a
        batch normalisation that makes no difference, and nothing is multiplied.
        """
        return prod((self.contribution(group, lengths, scale) for group in self.sums.get(module, ())), start=1.0)

    def contribution(self, group: str, lengths: Mapping[str, int], scale: Mapping[str, float]) -> float:
        """What a network of these lengths multiplies by what each unit of a group contributes to a sum."""
        return scale.get(group, 1.0) * (self.lengths[group] / lengths[group])


class Chain(Architecture):
    """A network as a chain of stages, from input to output; a stage is named by the axis of its output.

    A parameter's name begins with its stage's. ``batch_norms`` and ``sums`` have the stages' names.
    """

    stages: tuple[str, ...]

    @classmethod
    @abstractmethod
    def from_settings(cls, features: int, labels: int, task: str, settings: object) -> Chain:
        """The network that a run's model section describes."""

    @abstractmethod
    def stage(self, name: str, lengths: Mapping[str, int]) -> nn.Sequential:
        """One stage at the given lengths, any lengths, not only the full ones.

        Its first layer, ``linear``, is a product with weights whose rows are the stage's units.
        """

    @property
    def leaves(self) -> dict[str, tuple[str, ...]]:
        """Every stage's product."""
        paths = [f"{name}.linear" for name in self.stages]
        return {path: tuple(name for name in self.parameters if name.startswith(f"{path}.")) for path in paths}

    def without_values(self, scale: Mapping[str, float], lengths: Mapping[str, int] | None = None) -> nn.Sequential:
        import torch

        with torch.device("meta"):
            return self.build(lengths or self.lengths, scale)

    @property
    def example_shape(self) -> tuple[int, ...]:
        return (self.lengths["features"],)

    def build(self, lengths: Mapping[str, int], scale: Mapping[str, float] | None = None) -> nn.Sequential:
        from torch import nn

        network = nn.Sequential(OrderedDict((name, self.stage(name, lengths)) for name in self.stages))
        if scale is not None:
            for name in self.sums:
                self.product(network, name).factor = self.factor(name, lengths, scale)
        return network

    def batch_norm_layers(self, network: nn.Module) -> dict[str, BatchNorm]:
        from istmpi.models.norms import BatchNorm

        layers = ((stage, layer) for stage, layers in network.named_children() for layer in layers)
        return {stage: layer for stage, layer in layers if isinstance(layer, BatchNorm)}

    def product(self, network: nn.Sequential, name: str) -> nn.Module:
        return network.get_submodule(name)[0]

    @property
    def outline(self) -> str:
        return "-".join(str(self.lengths[name]) for name in ("features", *self.stages))
