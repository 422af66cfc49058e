"""Independent Subnet Training (arXiv 1910.02120, Algorithm 1), or without deals local SGD, DiLoCo
or SparseLoCo.

Every round units are dealt out anew (method.redeal), and every rank trains the narrow network of
its units for J steps. A rank trains a weight if it holds the units at both ends of the weight. A
rank that trains the weight in the next round gets it directly from the rank that trained it, or
already has it; other weights go to their owners. Weights that are not dealt out stay on all ranks,
which take their mean, or the mean of their largest changes (arXiv 2508.15706). Fewer than
`RING_BYTES` of such weights may go to owners instead. If units are dealt out and an outer step
follows (arXiv 1805.09767, 2311.08105), all weights go to their owners.
"""

from collections.abc import Iterator

from istmpi.methods.base import Method


class IST(Method):
    """A method of rounds: deal, fetch, J local steps, give, outer step."""

    def round(self, number: int) -> Iterator[int]:
        self.build(number)  # the network of the units that this rank was dealt: drawn from the seed
        self.shards.fetch(number, self.subnet.tensors)  # pull and hop
        yield from self.local_steps(number)  # J steps on this rank's examples, nothing is sent
        self.give(number)  # hop, push, and the mean over holders
        self.shards.outer_step()

    def give(self, number: int) -> None:
        """Pass on the values that this rank trained, and free what the next round does not use."""
        deals = not self.shards.route.keeps_all
        if deals:
            self.subnet.release_gradients()
        self.shards.give(number, self.subnet.tensors)
        if deals:
            self.subnet.release()

    def after_update(self, done: int) -> None:
        last_steps = self.settings.local_steps - done
        if self.shards.leaves_early and last_steps == self.shards.route.early:
            self.subnet.settle()
            # method.delay: the weights arrive while this rank takes the last steps.
            self.shards.send_early(self.subnet.tensors)

    def leaves(self, local_step: int, steps: int) -> bool:
        """Answer as `Method.leaves`, but False in a round from which weights leave early: all ranks
        finish it."""
        return super().leaves(local_step, steps) and not self.shards.leaves_early

    def publish(self) -> None:
        if self.shards.route.keeps_all and self.subnet.tensors:
            self.subnet.release_gradients()  # the evaluation needs their memory
        super().publish()
