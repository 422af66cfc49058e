"""Streaming DiLoCo (arXiv 2501.18512): DiLoCo that sends the network in fragments, one by one,
while ranks train.

A fragment leaves at its own step of every round (`istmpi.engine.fragments`). All ranks get the
fragment's mean exactly ``delay`` local steps later. An outer step from the last common values
towards the mean gives the new common values. The values of a rank become

    mix * own + (1 - mix) * common

Ranks send differences from the common values as floats of 4 bits (`istmpi.engine.few_bits`). Each
rank has its own optimizer state, which is never reset. The common values are evaluated and saved.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from istmpi.comm.allreduce import EncodedMean
from istmpi.comm.host_copies import on_host
from istmpi.engine.few_bits import Float4
from istmpi.engine.fragments import Departure, departures
from istmpi.engine.outer import Outer
from istmpi.engine.slots import VELOCITY, Slot, select_weights
from istmpi.engine.store import Tensors
from istmpi.methods.job import Job
from istmpi.methods.replicated import ReplicatedMethod


@dataclass
class _UnderWay:
    """A fragment that has left and not arrived: at most one at a time."""

    departure: Departure
    mean: EncodedMean
    vote: Callable[[], int]
    """A function that returns 1 if a rank wants to stop, else 0."""


class StreamingDiLoCo(ReplicatedMethod):
    """A method in which each rank has its own network, and all ranks have the same common values of
    all fragments.

    Ranks vote on a stop when a fragment leaves, and stop together once it has arrived: no fragment
    is under way then.
    """

    def __init__(self, job: Job):
        super().__init__(job)
        planned = departures(
            job.architecture.parameters,
            self.settings.fragments,
            self.settings.local_steps,
            self.spec.delay(job.run),
        )
        self._departures = {departure.leaves: departure for departure in planned}
        self._common: dict[str, torch.Tensor] = {}
        """The common weights and velocities. Tensors are replaced, never changed in place."""
        self._common_before: dict[str, torch.Tensor] = {}
        self._under_way: _UnderWay | None = None
        self._asked = self._leaving = False

    def begin(self, number: int) -> None:
        super().begin(number)
        self._common_before = dict(self._common)
        self._asked = self._leaving = False

    def after_fetch(self) -> None:
        tensors = self.subnet.tensors
        self._common = self.shards.alike | {
            name: tensors[name].clone() for name in select_weights(tensors)
        }

    def values_on_all_ranks(self) -> Tensors:
        return {name: self._common[name] for name in select_weights(self._common)}

    def rollback(self) -> None:
        super().rollback()
        self._common = self._common_before

    def fill_store(self) -> None:
        self.job.store.keep(on_host(self.subnet.tensors | self._common))

    def leaves(self, local_step: int, steps: int) -> bool:
        # A rank that is asked to stop goes on until the vote that travels with a fragment is known.
        self._asked |= self.job.stop.asked()
        return self._leaving

    def after_update(self, done: int) -> None:
        if done in self._departures:
            self._depart(self._departures[done])
        if self._under_way and self._under_way.departure.arrives == done:
            self._arrive(self._under_way)

    def _depart(self, departure: Departure) -> None:
        communicator = self.job.communicator
        self._asked |= self.job.stop.asked()
        with self.job.clock("all-reduce"):
            # It travels with the fragment, so that all ranks know the result at the same step.
            vote = communicator.start_allreduce_max(self._asked)
            self.subnet.settle()
            parts = []
            for name in departure.names:
                change = self.subnet.tensors[name] - self._common[name]
                parts.append(change.float().view(-1))
            mean = EncodedMean(torch.cat(parts).cpu(), Float4(), communicator)
            self._under_way = _UnderWay(departure, mean, vote)

    @torch.no_grad()
    def _arrive(self, arrived: _UnderWay) -> None:
        mix = self.settings.mix
        with self.job.clock("all-reduce"):
            change = arrived.mean.finish()
            self._leaving = bool(arrived.vote())
        self._under_way = None
        self.subnet.settle()
        lr, momentum = self.spec.outer(self.job.run)
        step = Outer(lr, momentum)
        starts = {name: self._common[name] for name in arrived.departure.names}
        parts = change.split([start.numel() for start in starts.values()])
        for (name, start), part in zip(starts.items(), parts, strict=True):
            mean = start + part.view(start.shape).to(start.device, start.dtype)
            step.start = {name: start}
            velocity = Slot(name, VELOCITY)
            stepped = {name: mean}
            if velocity in self._common:
                stepped[velocity] = self._common[velocity].clone()
            step.step(stepped)
            # New tensors, because a rollback needs the old ones.
            self._common |= stepped
            self.subnet.tensors[name].copy_(torch.lerp(mean, self.subnet.tensors[name], mix))
        if self.job.group:
            self.job.group.refresh({name: self.subnet.tensors[name] for name in starts})
