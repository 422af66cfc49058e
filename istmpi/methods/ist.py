"""Independent Subnet Training (arXiv 1910.02120, Algorithm 1).

Every round the units are dealt out anew; every rank trains the narrow network of its own units for J local steps, and
a weight is trained by the rank that was dealt both its ends. With nothing dealt out the same round is local SGD.
"""

from istmpi.axes import narrowed
from istmpi.config import Run
from istmpi.devices import copy_from_host, empty_on_host, on_host
from istmpi.errors import IstmpiError
from istmpi.methods.base import Method, Partial
from istmpi.models.architecture import Architecture
from istmpi.partition import Partition
from istmpi.transfer import Transfer


class IST(Method):
    """Deal, pull, J local steps, push."""

    @classmethod
    def groups(cls, run: Run, architecture: Architecture) -> tuple[str, ...]:
        return run.method.dealt(architecture.groups)

    def run(self, round: int, begun: Partial) -> float | Partial:
        store, communicator, clock = self.job.store, self.job.communicator, self.job.clock
        with clock("deal"):
            partition = self.deal(round)
            pull = Transfer(store.parameters, store.owners, partition, store.rank)
            push = Transfer(store.parameters, partition, store.owners, store.rank)
            subnet = self.build(narrowed(partition.lengths, store.parameters, partition.held(store.rank)))
            optimizer, tensors = self.optimizer(subnet, round, begun)
        with clock("pull"):
            kept = {name: tensors[name] for name in store.parameters}
            arriving = empty_on_host(kept)
            pull.run(store.tensors, arriving, communicator)
            copy_from_host(arriving | begun.tensors, kept)
        outcome = self.local_steps(subnet, optimizer, round, begun)
        subnet.zero_grad(set_to_none=True)
        stopped = isinstance(outcome, Partial)
        if stopped:
            store.add_slots(self.recipe.slots)
            push = Transfer(store.parameters, partition, store.owners, store.rank)
        with clock("push"):
            trained = on_host({name: tensors[name] for name in store.parameters})
            push.run(trained, store.tensors, communicator)
        if stopped:
            shared = [name for name, of in store.parameters.items() if partition.copies(of.pattern.names) > 1]
            outcome.tensors = {name: trained[name].clone() for name in shared}
        else:
            store.drop_slots(except_for=self.slots(self.job.run))
        return outcome

    def deal(self, round: int) -> Partition:
        """This round's deal, after all ranks have made sure that they drew the same."""
        job, settings = self.job, self.job.run.method
        partition = Partition.draw(
            job.architecture.lengths,
            self.groups(job.run, job.architecture),
            job.communicator.size,
            job.run.train.seed,
            round,
            settings.shares,
            settings.resample,
        )
        first = job.communicator.from_first(partition.digest)
        with job.communicator.agreed():
            if partition.digest != first:
                raise IstmpiError(
                    f"the deal of round {round + 1} differs from rank 0's; weights would be scrambled. "
                    f"Make sure that all ranks run the same versions of istmpi and NumPy."
                )
        return partition
