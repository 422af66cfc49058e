"""An evaluation by all members of a replica group: the leader gives them the full network's
weights, and each scores a part of the leader's examples.

Leaders alone calibrate, and score subnets side by side, sharded networks and samples: their passes
exchange messages with other ranks, or are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from istmpi.config.sections import Evaluate, Train
from istmpi.data.dataset import Dataset
from istmpi.engine.replica_group import ReplicaGroup
from istmpi.evaluation.full import FullNetwork, Moments
from istmpi.evaluation.own import OwnSums
from istmpi.evaluation.passing import Passing
from istmpi.network.architecture import Architecture
from istmpi.network.leaves import prepare
from istmpi.tasks import OwnTask
from istmpi.trees import call, map_tensors


@dataclass(frozen=True)
class Load:
    """A leader's call to load the full network, whose weights follow."""

    side: int
    scale: Mapping[str, float]
    """The factors of sums over units."""
    moments: Moments


@dataclass(frozen=True)
class Pass:
    """A leader's call to score a part of its examples of a split by the loaded network."""

    split: str
    details: bool
    """True for scores that take many bytes, too."""
    rank: int
    """The number of the group among those that divide the examples."""
    ranks: int


class Helpers:
    """The other members of a leader's replica group, as its evaluations see them."""

    def __init__(self, group: ReplicaGroup, side: int, device: torch.device):
        """``device``: that of the leader's training."""
        self._group = group
        self._side = side
        self._device = device

    @property
    def processes(self) -> int:
        """The number of processes of all groups."""
        return self._group.processes

    def call(self, network: object, split: str, details: bool, place: tuple[int, int]) -> int:
        """Let the members score their parts of the leader's examples of a split; return what `load`
        does. Collective in the group.

        ``place``: the number of the group among those that divide the examples, and the number of
        these.
        """
        members = self.load(network)
        if members > 1:
            rank, ranks = place
            self._group.membership.tell(Pass(split=split, details=details, rank=rank, ranks=ranks))
        return members

    def load(self, network: object) -> int:
        """Give the members the weights of the leader's network; return the number of processes that
        have them. Collective in the group.

        The leader alone scores a network whose passes need other ranks.
        """
        if not isinstance(network, FullNetwork) or not network.is_whole or not network.computes:
            return 1
        # A network beside the group's GPUs has no room there, and NCCL sends nothing else.
        if network.device != self._device:
            return 1
        self._group.membership.tell(Load(self._side, network.scale, network.moments))
        self._group.share(_list_values(network.gathered, network.module))
        return self._group.size

    def collect(self) -> list[Any]:
        """Return what the other members have added up. Collective in the group."""
        _, *parts = self._group.membership.inside.allgather(None)
        return parts


class MemberNetwork:
    """The full network on a member that does not lead."""

    _scale: Mapping[str, float] | None = None
    module: nn.Module
    _gathered: dict[str, nn.Parameter]

    def __init__(self, group: ReplicaGroup, architecture: Architecture, device: torch.device):
        self._group = group
        self._architecture = architecture
        self.device = device

    def load(self, request: Load) -> None:
        """Take the leader's weights. Collective in the group."""
        # Fitted factors are part of the built network.
        if self._scale != request.scale:
            self._build(request.scale)
        architecture = self._architecture
        for name, parameter in self._gathered.items():
            shape = architecture.parameters[name].pattern.shape(architecture.lengths)
            parameter.data = parameter.data.new_empty(shape)
        for name, layer in architecture.batch_norm_layers(self.module).items():
            layer.moments = map_tensors(self._here, request.moments.get(name))
        self._group.share(_list_values(self._gathered, self.module))

    def _build(self, scale: Mapping[str, float]) -> None:
        self.module = self._architecture.without_values(scale).eval()
        self._gathered = prepare(self.module, elsewhere=())
        self.module.to(self.device)
        self._scale = scale
        heartbeat = self._group.membership.world.whereabouts.heartbeat
        for part in self.module.modules():
            part.register_forward_hook(lambda *_: heartbeat())

    def _here(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.device)

    def release(self) -> None:
        """Free the memory of the weights."""
        for parameter in self._gathered.values():
            parameter.data = parameter.data.new_empty(0)

    @torch.no_grad()
    def __call__(self, *inputs: torch.Tensor) -> object:
        return call(self.module, inputs)


class MemberScores:
    """A member's scores of its parts of splits, on images of one size."""

    def __init__(
        self,
        train: Train,
        evaluate: Evaluate,
        architecture: Architecture,
        dataset: Dataset,
        group: ReplicaGroup,
        device: torch.device,
    ):
        self._dataset = dataset
        self._group = group
        self._passing = Passing(train, evaluate, architecture, dataset)
        self._network = MemberNetwork(group, architecture, device)

    @property
    def module(self) -> nn.Module:
        """The full network, with the weights that were loaded last."""
        return self._network.module

    def load(self, request: Load) -> None:
        """Take the leader's weights. Collective in the group."""
        self._network.load(request)

    def add_up(self, request: Pass) -> None:
        """Send the leader the sums over this member's part of a split. Collective in the group."""
        passing = self._passing
        split = self._dataset.splits[request.split]
        place = self._group.find_place(request.rank, request.ranks)
        batches = passing.divide(
            split, passing.choose_rows(split), place, self._group.processes, self._network.device
        )
        part: object
        if issubclass(passing.task, OwnTask):
            amounts = OwnSums(passing.task, looks=False)
            passing.add_up_own(self._network, batches, amounts)
            part = amounts.part
        else:
            totals = passing.make_totals(np.asarray, request.details)
            sums = passing.add_up(self._network, batches, totals)
            part = sums, totals.margins
        self.send(part)

    def send(self, part: object) -> None:
        """Send the leader what this member has added up. Collective in the group."""
        self._group.membership.inside.allgather(part)
        self._network.release()


def _list_values(gathered: Mapping[str, nn.Parameter], module: nn.Module) -> list[torch.Tensor]:
    """Return a network's values in an order that all members have."""
    return [*(parameter.detach() for parameter in gathered.values()), *module.buffers()]
