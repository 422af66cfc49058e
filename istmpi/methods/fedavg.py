"""Federated averaging (McMahan et al. 2017, arXiv 1602.05629): some of the ranks train, each on all
its examples.

Every round a fraction of the ranks is drawn at random. Each drawn rank takes ``epochs`` passes over
its own examples; the last batch of a pass may be smaller. The weights become the mean over the
drawn ranks, weighted by their numbers of examples.
"""

from istmpi.engine.layout import Replicated
from istmpi.engine.partition import draw_ranks
from istmpi.methods.ist import IST
from istmpi.methods.job import Job


class FedAvg(IST):
    """IST in which the drawn ranks hold the whole network in a round, and the other ranks
    nothing."""

    def __init__(self, job: Job):
        super().__init__(job)
        self._examples = tuple(job.communicator.allgather(job.batches.examples))

    def drawn(self, number: int) -> tuple[int, ...]:
        ranks = self.job.communicator.size
        return draw_ranks(ranks, self.settings.fraction, self.seed, number)

    def holders(self, number: int) -> Replicated:
        return Replicated(
            lengths=self.job.architecture.lengths,
            ranks=self.job.communicator.size,
            members=self.drawn(number),
            weights=self._examples,
        )

    def steps(self, number: int) -> int:
        # Other ranks hold nothing that they could train.
        if self.job.communicator.rank not in self.drawn(number):
            return 0
        return super().steps(number)
