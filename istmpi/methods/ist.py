"""Independent Subnet Training (arXiv 1910.02120, Algorithm 1); local SGD, DiLoCo and SparseLoCo deal out nothing.

Every round the units are dealt out anew; every rank trains the narrow network of its own units for J local steps, and
a weight is trained by the rank that was dealt both its ends. A weight that somebody trains in the next round, too, goes
to that rank straight from the one that trained it, or stays where it is; the others are flushed to their owners. What
is not dealt out stays on all ranks, which take its mean, or the mean of the largest changes (arXiv 2508.15706). An
outer step may follow (arXiv 1805.09767, 2311.08105).
"""

from collections.abc import Iterator

from istmpi.methods.base import Method


class IST(Method):
    """A method of rounds: deal, fetch, J local steps, give, outer step."""

    def round(self, number: int) -> Iterator[int]:
        self.build(number)  # the network of the units that this rank was dealt: drawn from the seed
        self.shards.fetch(number, self.subnet.tensors)  # pull and hop
        yield from self.local_steps(number)  # J steps on this rank's examples, without communication
        if not self.shards.route.keeps_all:
            self.subnet.release_gradients()
        self.shards.give(number, self.subnet.tensors)  # hop, push, and the mean over holders
        self.shards.outer_step()
        if not self.shards.route.keeps_all:
            self.subnet.release()

    def after_update(self, done: int) -> None:
        if self.shards.leaves_early and done == self.job.run.method.local_steps - self.shards.route.early:
            self.subnet.settle()
            self.shards.send_early(self.subnet.tensors)  # method.delay: what leaves does so now

    def leaves(self, local_step: int, steps: int) -> bool:
        """Stay to the end of a round in which weights leave early, as all ranks do so together."""
        return super().leaves(local_step, steps) and not self.shards.leaves_early

    def publish(self) -> None:
        if self.shards.route.keeps_all and self.subnet.tensors:
            self.subnet.release_gradients()  # the evaluation has their memory meanwhile
        super().publish()
