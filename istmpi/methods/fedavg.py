"""Federated averaging (McMahan et al. 2017, arXiv 1602.05629): some of the ranks train, each on all it has.

Every round a share of the ranks is drawn at random. Each of them takes as many passes over its own examples as
``epochs`` says, in batches of which the last may be smaller, and the weights become the mean over them, a rank counting
as often as it has examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from istmpi.data.batch import Batch
from istmpi.data.batches import Batches
from istmpi.engine.layout import Replicated
from istmpi.engine.partition import draw_ranks
from istmpi.errors import ConfigError
from istmpi.methods.ist import IST
from istmpi.methods.job import Job
from istmpi.models.architecture import Architecture

if TYPE_CHECKING:
    from istmpi.config import Run


class FedAvg(IST):
    """A round of IST in which the ranks that were drawn hold the whole network, and the others nothing."""

    def __init__(self, job: Job):
        super().__init__(job)
        self._examples = tuple(job.communicator.allgather(job.batches.examples))

    @classmethod
    def check(cls, run: Run, task: str, batches: Batches, architecture: Architecture) -> None:
        left = batches.examples - (batches.in_a_pass - 1) * batches.batch
        if architecture.batch_norms and left == 1:
            normalisation = run.model.batch_statistics or "batch normalisation"
            raise ConfigError(
                f"train.batch = {batches.batch} leaves fedavg a last batch of one example (of "
                f"{batches.examples}), too few for {normalisation}. Use another train.batch or normalisation."
            )

    def drawn(self, number: int) -> tuple[int, ...]:
        """Return the ranks that train in a round, ascending: the same on every rank."""
        run = self.job.run
        return draw_ranks(self.job.communicator.size, run.method.fraction, run.train.seed, number)

    def holders(self, number: int) -> Replicated:
        return Replicated(self.job.architecture.lengths, self.job.communicator.size, self.drawn(number), self._examples)

    def first_step(self, number: int) -> int:
        return number * self.job.run.method.epochs * self.job.batches.in_a_pass

    def steps(self, number: int) -> int:
        return self.first_step(1) if self.job.communicator.rank in self.drawn(number) else 0

    def batch(self, step: int) -> Batch:
        return self.job.batches.of_pass(*divmod(step, self.job.batches.in_a_pass))
