"""What IST does not deal out: every rank has it, trains it, and takes the mean with the others round a ring.

By default that is done after every round, as in local SGD; with ``method.share_every`` ranks go on with their own
values in between, and the owners have their mean once it is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from istmpi.comm.allreduce import MeanOverRanks
from istmpi.devices import on_host
from istmpi.engine.slots import without
from istmpi.methods.base import Job
from istmpi.methods.outer import START
from istmpi.methods.spec import VELOCITY


class Shared:
    """This rank's values of it between rounds: ``tensors``, none before the first round's end."""

    def __init__(self, job: Job, groups: Collection[str]):
        self._job, self._groups = job, groups
        self._every = job.run.method.share_every
        self.tensors: dict[str, torch.Tensor] = {}
        self._alike = True

    def anew(self) -> Shared:
        """The same, as before the first round."""
        return Shared(self._job, self._groups)

    def end(self, round: int, trained: Mapping[str, torch.Tensor]) -> None:
        """Take over what was trained in a round, and its mean where that is due. Collective."""
        parameters = self._job.store.parameters
        names = [name for name in without(parameters, VELOCITY, START) if not self._is_dealt(name)]
        self._alike = (round + 1) % self._every == 0
        if self._alike:
            self._average(trained, names)
        # In between a round that diverges must leave them as they were.
        self.tensors = {name: trained[name] if self._every == 1 else trained[name].clone() for name in names}

    def publish(self) -> None:
        """Have the mean in the owners' rows. Collective."""
        if not self._alike:
            self._average({name: values.clone() for name, values in self.tensors.items()}, list(self.tensors))

    def own(self) -> Mapping[str, torch.Tensor]:
        """Those of which other ranks have other values."""
        return {} if self._alike else on_host(self.tensors)

    def _average(self, tensors: Mapping[str, torch.Tensor], names: list[str]) -> None:
        """Let these tensors, and the owners' rows, have the mean over ranks."""
        with self._job.clock("all-reduce"):
            mean = MeanOverRanks({name: tensors[name].nbytes for name in names}, self._job.communicator)
            for name in names:
                mean.add(name, tensors[name])
            mean.finish()
        self._job.store.keep(on_host({name: tensors[name] for name in names}))

    def _is_dealt(self, name: str) -> bool:
        return bool(self._job.store.parameters[name].pattern.dealt(self._groups))
