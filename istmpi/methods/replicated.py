"""Methods in which every rank has the whole network and keeps it from round to round."""

from collections.abc import Iterator

import torch

from istmpi.comm.host_copies import copy_from_host, on_host
from istmpi.engine.layout import Replicated
from istmpi.engine.outer import Outer
from istmpi.engine.store import Tensors
from istmpi.engine.transfer import Transfer
from istmpi.methods.base import Method
from istmpi.methods.job import Job


class ReplicatedMethod(Method):
    """A method that fetches the network once, and saves, restores and rolls back the tensors of
    `each_rank`.

    Ranks' networks may differ between rounds; `publish` brings the evaluated network to its owners.
    A subclass with an outer step takes the step itself.
    """

    restores_itself = True

    def __init__(self, job: Job):
        super().__init__(job)
        # Idle: a subclass takes the outer step itself, if it has one.
        self.shards.outer = Outer()
        self._start: dict[str, torch.Tensor] = {}
        self._published = True

    def round(self, number: int) -> Iterator[int]:
        self.begin(number)
        self._start = {name: values.clone() for name, values in self.each_rank().items()}
        yield from self.local_steps(number)
        self.exchange(number)
        self._start = {}

    def begin(self, number: int) -> None:
        """Build this rank's network and its optimizer; fetch their values in the first round of a
        job. Collective."""
        is_first = not self.subnet.tensors
        self._published = False
        self.build(number)
        if is_first:
            self.shards.fetch(number, self.subnet.tensors)
            self.after_fetch()
            tensors = self.each_rank()
            restored = self.job.restored
            copy_from_host(restored, {name: tensors[name] for name in restored if name in tensors})

    def after_fetch(self) -> None:
        """Make the method's own tensors after the network has come from its owners; nothing by
        default."""
        return

    def exchange(self, number: int) -> None:
        """Exchange values with other ranks after a round's local steps; nothing by default.
        Collective."""
        return

    def each_rank(self) -> dict[str, torch.Tensor]:
        """Return the tensors of which each rank has its own values between rounds; they change only
        in place."""
        return {
            name: self.subnet.tensors[name]
            for name in self.job.store.parameters
            if name in self.subnet.tensors
        }

    def fill_store(self) -> None:
        """Bring the evaluated network into ``job.store``; by default it is there already.
        Collective."""
        return

    def give_mean(self, members: tuple[int, ...] | None = None) -> None:
        """Give the owners the mean of the tensors of the ranks ``members``, by default of all.
        Collective."""
        store = self.job.store
        tensors = self.of_this_rank()
        moved = {name: store.parameters[name] for name in tensors}
        holders = Replicated(store.owners.lengths, store.owners.ranks, members)
        push = Transfer(moved, holders, store.owners, store.rank)
        push.run(tensors, store.tensors, self.job.communicator)

    def values_on_all_ranks(self) -> Tensors:
        """Return nothing: by default ranks' networks differ between rounds."""
        return {}

    def rollback(self) -> None:
        tensors = self.each_rank()
        for name, values in self._start.items():
            tensors[name].copy_(values)

    def of_this_rank(self) -> Tensors:
        # Before the first round of a job, only the checkpoint has values.
        if not self.subnet.tensors:
            return self.job.restored
        return on_host(self.each_rank())

    def publish(self) -> None:
        if self.subnet.tensors:
            self.subnet.release_gradients()  # an evaluation needs their memory
        if not self._published:
            self.fill_store()
            self._published = True
