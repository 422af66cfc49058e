"""Scores of the full network: calibrated on a sample of the training data, run on a split.

Which of its weights every rank has whole meanwhile, and which stay where they are, is said by
`istmpi.cost.evaluation`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from istmpi import rng
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.cost.evaluation import evaluation_memory, evaluation_plan
from istmpi.data.dataset import Dataset, Split
from istmpi.engine.store import ParameterStore
from istmpi.evaluation.full import FullNetwork
from istmpi.models.architecture import Architecture
from istmpi.tasks import TASKS


@dataclass(frozen=True)
class Score:
    """What the full network achieves on a split: mean loss, mean score (accuracy, say) and the number of examples."""

    loss: float
    score: float
    examples: int


class Evaluator:
    """Scores the full network on the test split, after calibrating it on a sample of the training data. Collective."""

    def __init__(
        self,
        run: Run,
        architecture: Architecture,
        dataset: Dataset,
        store: ParameterStore,
        communicator: Communicator,
        trained_on: int | None = None,
    ):
        """``trained_on``: so many ranks, where they are others than these."""
        self._run, self._dataset, self._communicator = run, dataset, communicator
        self._local = run.data.placement == "local"
        self._task = TASKS[dataset.task]
        self._dtype = getattr(torch, run.model.dtype)
        memory = evaluation_memory(run, architecture, trained_on or communicator.size)
        sampled = min(run.evaluate.calibration_examples, len(dataset.train))
        passes = [] if self._local else [sampled, *map(len, self._batches(len(dataset.test)))]
        self.plan = evaluation_plan(architecture, communicator.size, memory, passes, self._local)
        self.network = FullNetwork(architecture, store, communicator, self.plan.sharded, self._local)

    def score(self) -> Score:
        """The score on the whole test split, at the store's present weights."""
        self.calibrate()
        score = self.measure(self._dataset.test)
        self.network.release()
        return score

    def measure(self, split: Split) -> Score:
        """The score on a whole split, with the normalisation as it is."""
        totals = np.zeros(3)
        spread = not self._local and not self.network.same_examples
        first, step = (self._communicator.rank, self._communicator.size) if spread else (0, 1)
        for rows in islice(self._batches(len(split)), first, None, step):
            batch = split.batch(rows).to("cpu", self._dtype)
            outputs = self.network(*batch.inputs)
            loss = float(self._task.loss(outputs, batch.targets, "sum"))
            totals += loss, self._task.points(outputs, batch.targets), batch.examples
        self.network.finish()
        if self._local or spread:
            totals = self._communicator.allreduce_sum(totals)
        loss, points, examples = totals.tolist()
        return Score(loss / examples, points / examples, int(examples))

    def calibrate(self) -> None:
        """Take the normalisations' moments at the store's present weights."""
        self.network.calibrate(*self._dataset.train.batch(self._sample()).to("cpu", self._dtype).inputs)

    def _sample(self) -> np.ndarray:
        """The training rows to calibrate on: the same on all ranks, or with local examples a share of each rank's."""
        share, stream = 1, 0
        if self._local:
            share, stream = self._communicator.size, self._communicator.rank
        return calibration_rows(self._run, len(self._dataset.train), share, stream)

    def _batches(self, length: int) -> Iterator[np.ndarray]:
        """The rows of a split, batch by batch."""
        batch = self._run.evaluate.batch
        for first in range(0, length, batch):
            yield np.arange(first, min(first + batch, length))


def calibration_rows(run: Run, length: int, share: int = 1, stream: int = 0) -> np.ndarray:
    """The rows of a training split of some length to calibrate on, or one of so many equal shares of them; sorted."""
    wanted = run.evaluate.calibration_examples
    order = rng.permutation(length, rng.key(run.train.seed, "calibration", stream))
    return np.sort(order[: wanted if share == 1 else max(wanted // share, 2)])
