"""Passes scored examples through a network, batch by batch, and adds up their scores: on a rank,
and on each member of its replica group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from istmpi.code import calling
from istmpi.config.sections import Evaluate, Train
from istmpi.data.batch import Batch
from istmpi.data.dataset import Dataset, Split
from istmpi.evaluation.further import Join, choose_further
from istmpi.evaluation.own import OwnSums
from istmpi.evaluation.planning import divide
from istmpi.evaluation.sample import choose_scored
from istmpi.evaluation.score import PointTotals, Totals
from istmpi.names import is_own
from istmpi.network.architecture import Architecture
from istmpi.outputs import LossOfOutputs
from istmpi.tasks import OwnTask, Task, choose_task
from istmpi.trees import list_tensors

if TYPE_CHECKING:
    from istmpi.evaluation.logits import Logits
    from istmpi.outputs import Outputs

Network = Callable[..., Any]


class Passing:
    """The passes of a network over the batches of a split."""

    def __init__(
        self, train: Train, evaluate: Evaluate, architecture: Architecture, dataset: Dataset
    ):
        self._train = train
        self._evaluate = evaluate
        self._dataset = dataset
        self._architecture = architecture
        self.task: type[Task] = choose_task(dataset.scoring, train.multi_label_loss)

    def choose_rows(self, split: Split) -> np.ndarray:
        """Return the rows of a split that are scored."""
        return choose_scored(self._evaluate, self._dataset, len(split))

    def divide(
        self,
        split: Split,
        rows: np.ndarray,
        place: tuple[int, int],
        processes: int,
        device: torch.device,
    ) -> Iterator[Batch]:
        """Yield the batches of a process, of the ``rows`` of a split.

        ``place``: the number of its first batch, and the distance to the next one. ``processes``:
        those of the job, each of which may have a batch.
        """
        parts = divide(self._evaluate.batch, self._dataset, len(rows), processes)
        first, distance = place
        for part in islice(parts, first, None, distance):
            yield split.batch(rows[part]).to(device, self._architecture.dtype)

    def compute(self, network: Network, batch: Batch) -> Outputs:
        name = self._architecture.name
        if issubclass(self.task, OwnTask) or is_own(name):
            with calling(f"{name}: forward"):
                return network(*batch.inputs)
        return network(*batch.inputs)

    def make_totals(self, join: Join, details: bool) -> PointTotals:
        """Return the sums of a task whose score is a mean over points. The arguments are those of
        `choose_further`."""
        task = self.task
        loss = LossOfOutputs.from_settings(task.loss, self._train)
        outputs = len(self._architecture.table.output_names)
        further = choose_further(task, self._dataset, self._evaluate, join, details)
        return PointTotals(task, self._dataset, outputs, loss, further)

    def add_up(
        self,
        network: Network,
        batches: Iterable[Batch],
        totals: Totals,
        whole: bool = True,
        logits: Logits | None = None,
    ) -> np.ndarray:
        """Return the sums over batches, not finite if an output is not. ``whole``: True if a pass
        returns all outputs. ``logits`` takes the outputs, too."""
        sums = np.zeros(totals.count)
        for batch in batches:
            outputs = self.compute(network, batch)
            sums += totals.add_up(outputs, batch)
            if logits:
                logits.add(outputs, batch)
            if whole and not all(output.isfinite().all() for output in list_tensors(outputs)):
                sums[:] = np.nan  # so that all ranks see it
        return sums

    def add_up_own(self, network: Network, batches: Iterable[Batch], sums: OwnSums) -> None:
        """Add up a user's functions over batches. Raises ConfigError for an unusable value."""
        for batch in batches:
            # A user's functions may build a graph that nobody needs.
            with torch.no_grad():
                sums.add(self.compute(network, batch), batch)
