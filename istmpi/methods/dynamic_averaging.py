"""Dynamic averaging (Kamp et al. 2018, arXiv 1807.03210): ranks average when a rank is far from the
last mean.

After every round each rank measures the distance of its weights from the reference, which is the
last mean of all ranks. No weights are sent if no squared distance is above ``threshold`` times the
reference's squared norm. Otherwise the ranks above this limit take their mean. While the mean is
above the limit, too, as many other ranks, drawn at random, join. Once half of the ranks take part,
all ranks join; the mean of all ranks is the next reference.
"""

from collections.abc import Sequence

import torch

from istmpi import rng
from istmpi.comm.host_copies import copy_from_host, on_host
from istmpi.engine.layout import Owners, Replicated, part_shape
from istmpi.engine.slots import Slot, select_weights
from istmpi.engine.store import Tensors
from istmpi.engine.transfer import Transfer
from istmpi.methods.job import Job
from istmpi.methods.replicated import ReplicatedMethod

REFERENCE = "reference"


class DynamicAveraging(ReplicatedMethod):
    """A method in which every rank has its own network; `publish` stores the ranks' mean and the
    reference."""

    def __init__(self, job: Job):
        super().__init__(job)
        self._reference: dict[str, torch.Tensor] = {}

    def after_fetch(self) -> None:
        for name in select_weights(self.job.store.parameters):
            stored = self.shards.alike.get(Slot(name, REFERENCE))
            if stored is None:
                stored = self.subnet.tensors[name].clone()
            self._reference[name] = stored

    def fill_store(self) -> None:
        self.give_mean()
        self.job.store.add_slots((REFERENCE,))
        self.job.store.keep(
            {Slot(name, REFERENCE): values for name, values in on_host(self._reference).items()}
        )

    def exchange(self, number: int) -> None:
        communicator = self.job.communicator
        clock = self.job.clock
        # Rank 0 decides: a sum's last bit depends on processor and threads, and all must see the
        # same members.
        limit = communicator.broadcast_from_root(
            self.settings.threshold * _square_norm(self._reference)
        )
        distance = _square_norm(self._reference, self.subnet.tensors)
        with clock("wait"):
            drifts = communicator.allgather(distance)
        members = [rank for rank, drift in enumerate(drifts) if drift > limit]
        stream = rng.key(self.seed, "averaging", number)
        order = rng.permutation(communicator.size, stream).tolist()
        near = not members
        while not near:
            if 2 * len(members) >= communicator.size:
                members = list(range(communicator.size))
            with clock("push"):
                near = self._average(members, limit)
            # The members double in number; they join in an order that all ranks know.
            others = [rank for rank in order if rank not in members]
            members += others[: len(members)]

    def _average(self, members: Sequence[int], limit: float) -> bool:
        """Give members their mean if it is near the reference or if all are members; return True
        then. Collective."""
        communicator = self.job.communicator
        tensors = dict(self.of_this_rank())
        moved = {name: self.job.store.parameters[name] for name in tensors}
        everybody = len(members) == communicator.size
        with communicator.among(members) as some:
            mean: dict[str, torch.Tensor] = {}
            distance = 0.0
            if some:
                lengths = self.job.architecture.lengths
                # The members alone own the mean, until it is known to be near.
                owners = Owners(lengths, some.size)
                whole = Replicated(lengths, some.size)
                for name, parameter in moved.items():
                    shape = part_shape(owners, parameter, some.rank)
                    mean[name] = torch.empty(shape, dtype=tensors[name].dtype)
                Transfer(moved, whole, owners, some.rank).run(tensors, mean, some)
                if not everybody:
                    distance = self._distance(mean, owners, some.rank)
            near = everybody or sum(communicator.allgather(distance)) <= limit
            if near and some:
                Transfer(moved, owners, whole, some.rank).run(mean, tensors, some)
                copy_from_host(tensors, {name: self.subnet.tensors[name] for name in tensors})
        if everybody:
            self._reference = {name: self.subnet.tensors[name].clone() for name in self._reference}
        return near

    def _distance(self, mean: Tensors, owners: Owners, rank: int) -> float:
        reference = {}
        for name, values in on_host(self._reference).items():
            rows = owners.rows(len(values), rank)
            reference[name] = values[rows.start : rows.stop]
        return _square_norm(reference, mean)


def _square_norm(tensors: Tensors, others: Tensors | None = None) -> float:
    """Return the squared norm of tensors or, if given, of the ``others`` minus the tensors."""
    total = 0.0
    for name, values in tensors.items():
        difference = values
        if others is not None:
            difference = others[name] - values
        total += float(torch.linalg.vector_norm(difference, dtype=torch.float64) ** 2)
    return total
