"""What IST does not deal out: every rank has it, trains it, and takes the mean with the others round a ring.

By default that is done after every round, as in local SGD; with ``method.share_every`` ranks go on with their own
values in between, and the owners have their mean once it is asked for. An outer step may follow the ring's mean, not
that of the owners: the change since the last one is its gradient, and every rank takes it, with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from istmpi.comm.allreduce import MeanOverRanks
from istmpi.comm.codec import Wire
from istmpi.devices import copy_from_host, empty_on_host, on_host
from istmpi.engine.layout import Replicated
from istmpi.engine.slots import Slot, parameter_of, weights_among, without
from istmpi.engine.transfer import Transfer
from istmpi.engine.wire import form_of
from istmpi.methods.base import Job
from istmpi.methods.outer import Outer
from istmpi.methods.spec import START, VELOCITY, MethodSpec


class Shared:
    """This rank's values of it between rounds: ``tensors``, none where they are to come from the owners."""

    def __init__(self, job: Job, spec: MethodSpec):
        self._job, self._kept = job, spec.kept(job.run, job.architecture)
        self._every = job.run.method.share_every
        self._parameters = spec.shared(job.run, job.architecture)
        self.tensors: dict[str, torch.Tensor] = {}
        self._before: Mapping[str, torch.Tensor] = {}
        self._alike = True
        self.outer = Outer(*spec.shared_step(job.run))
        """Its start is that of the rounds up to the next mean."""
        self._velocity: dict[str, torch.Tensor] = {}

    @property
    def names(self) -> list[str]:
        """All tensors that stay on all ranks, those of which each trains its own."""
        shared = {*self._parameters}
        return [name for name in without(self._job.store.parameters, VELOCITY, START) if parameter_of(name) in shared]

    def begin(self, held: Mapping[str, torch.Tensor]) -> None:
        """Remember where the rounds up to the next mean start, of what this rank has to train. Collective."""
        if self.outer.idle or self.outer.start:
            return
        fetched = {} if self.tensors else self._fetch(held)
        self._velocity |= {name: values for name, values in fetched.items() if name.kind == VELOCITY}
        starts = {name: values for name, values in fetched.items() if name.kind == START}
        self.outer.begin({name: held[name] for name in self._parameters} | starts)

    def end(self, round: int, trained: Mapping[str, torch.Tensor], wire: Wire | None) -> None:
        """Take over what was trained in a round, and its mean where that is due. Collective.

        ``wire``: how that mean travels; where it is taken for an evaluation alone, it travels as it is.
        """
        names = self.names
        self._alike = (round + 1) % self._every == 0
        if self._alike:
            self._average(trained, names, wire)
            self.outer.step({name: trained[name] for name in weights_among(names)} | self._velocity)
            self._job.store.keep(on_host({name: trained[name] for name in names} | self._velocity))
            self._job.store.drop_slots(except_for=self._kept)  # the start: these rounds are over
        # In between a round that diverges must leave them as they were.
        self.tensors = {name: trained[name] if self._every == 1 else trained[name].clone() for name in names}

    def suspend(self) -> None:
        """Leave in the store what `begin` needs in the middle of a round; what was trained is to go to the owners."""
        self._before = self.own()
        self._keep_start()
        self.tensors, self._velocity, self.outer.start = {}, {}, {}

    def publish(self) -> None:
        """Have the mean in the owners' rows, and where the rounds up to the next one started. Collective."""
        if not self._alike and self.tensors:
            mean = {name: values.clone() for name, values in self.tensors.items()}
            self._average(mean, list(mean))
            self._job.store.keep(on_host(mean))
            self._keep_start()

    def own(self) -> Mapping[str, torch.Tensor]:
        """Those of which other ranks have other values; of a round that was stopped, from before it."""
        return {} if self._alike else on_host(self.tensors) or self._before

    def _fetch(self, held: Mapping[str, torch.Tensor]) -> dict[Slot, torch.Tensor]:
        """What the owners have of an outer step's slots, whole; a velocity that is zero everywhere is not sent."""
        communicator, store = self._job.communicator, self._job.store
        slots = [Slot(name, kind) for kind in (START, VELOCITY) for name in self._parameters]
        pulled = {name: store.parameters[name] for name in slots if name in store.parameters}
        whole = {name: torch.zeros_like(held[name.parameter]) for name in pulled}
        if communicator.allreduce_max(any(bool(store.tensors[name].any()) for name in pulled)):
            layout = Replicated(store.owners.lengths, store.owners.ranks)
            arriving = empty_on_host(whole)
            Transfer(pulled, store.owners, layout, store.rank).run(store.tensors, arriving, communicator)
            copy_from_host(arriving, whole)
        return whole

    def _average(self, tensors: Mapping[str, torch.Tensor], names: list[str], wire: Wire | None = None) -> None:
        """Let these tensors have the mean over ranks."""
        nbytes = {name: tensors[name].nbytes for name in names}
        of = self._job.store.parameters
        with self._job.clock("all-reduce"):
            encoded = ({name: form_of(wire.kind, name, of[name]) for name in names}, wire.key) if wire else ()
            mean = MeanOverRanks(nbytes, self._job.communicator, *encoded)
            for name in names:
                mean.add(name, tensors[name])
            mean.finish()

    def _keep_start(self) -> None:
        self._job.store.add_slots(self.outer.kept_start)
        self._job.store.keep(on_host(self.outer.kept_start))
