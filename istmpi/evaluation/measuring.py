"""Scores a full network on splits, after calibration on a sample of the training data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial

import numpy as np
import torch

from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.data.batch import Batch
from istmpi.data.dataset import Dataset, Split
from istmpi.data.graph.split import GraphSplit
from istmpi.data.sparse.split import SparseSplit
from istmpi.devices import HOST, with_room
from istmpi.engine.store import ParameterStore
from istmpi.evaluation.blocks import SharedBlocks
from istmpi.evaluation.choosing import require_finite
from istmpi.evaluation.full import FullNetwork
from istmpi.evaluation.further import join_over_ranks
from istmpi.evaluation.in_group import Helpers
from istmpi.evaluation.logits import Logits
from istmpi.evaluation.own import OwnSums
from istmpi.evaluation.passing import Passing
from istmpi.evaluation.planning import Evaluations
from istmpi.evaluation.sample import draw_calibration_rows
from istmpi.evaluation.score import PointTotals, RankingTotals, Score, Totals
from istmpi.multilabel import Ranking
from istmpi.network.architecture import Architecture
from istmpi.tasks import MultiLabel, OwnTask


class Measuring:
    """Scores a full network as it is. Every method is collective."""

    _is_calibrated = False
    """True if the full network is loaded and calibrated already."""
    _sink: Logits | None = None
    """It takes the logits of the next pass."""

    def __init__(
        self,
        run: Run,
        architecture: Architecture,
        dataset: Dataset,
        store: ParameterStore,
        communicator: Communicator,
        trained_on: int | None = None,
        device: torch.device = HOST,
        helpers: Helpers | None = None,
    ):
        """``trained_on``: the number of ranks in training, if it differs from the number here.
        ``device``: the device of networks that fit into its memory. ``helpers``: the other members
        of this rank's replica group."""
        self._run = run
        self._dataset = dataset
        self._communicator = communicator
        self._architecture = architecture
        self._store = store
        self._local = run.data.placement == "local"
        self._passing = Passing(run.train, run.evaluate, architecture, dataset)
        self._task = self._passing.task
        self.helpers = helpers
        self._graph = isinstance(dataset.train, GraphSplit)
        size = communicator.size
        self.planned = Evaluations(run, architecture, dataset, size, trained_on or size)
        self._calibrates = bool(architecture.batch_norms)
        self.plan = self.planned.plan
        self._merged = self._build(device)
        self._blocks: SharedBlocks | None = None
        self.network: FullNetwork | SharedBlocks = self._merged
        """The network that is scored, in the form `form`."""
        self.form = "merged"
        # One rank is enough to see whether a user's function is a mean over rows.
        self._looks = communicator.rank == 0
        self.note = ""
        """A sentence about the user's functions that a run should report once, or empty."""

    def _build(self, device: torch.device) -> FullNetwork:
        store = self._store
        nbytes = sum(values.nbytes for values in store.tensors.values()) * self._communicator.size
        return FullNetwork(
            self._architecture,
            store,
            self._communicator,
            sharded=self.plan.sharded,
            local_examples=self._local,
            spread=issubclass(self._task, MultiLabel),
            by_units=self.plan.by_units,
            device=with_room(device, nbytes),
            on_one=self.plan.on_one,
            summed=self.plan.summed,
        )

    def _make_totals(self, details: bool) -> PointTotals:
        join = partial(join_over_ranks, self._dataset, self._communicator, self._adds_up)
        return self._passing.make_totals(join, details)

    def measure(self, split: str, rows: np.ndarray | None = None, details: bool = False) -> Score:
        """Return the score on ``rows`` of a split, by default the run's rows.

        ``details``: True for scores that take many bytes, too, such as a confusion. Raises
        DivergedError if not finite.
        """
        examples = self._dataset.splits[split]
        members = 1
        if rows is None and self.helpers:
            members = self.helpers.call(self.network, split, details, self._place)
        if rows is None:
            rows = self._passing.choose_rows(examples)
        batches = self._own_batches(examples, rows, members)
        task = self._task
        if issubclass(task, OwnTask):
            return self._measure_own(task, batches, members)
        totals: Totals
        if issubclass(task, MultiLabel):
            totals = RankingTotals(
                task.score, task.kind, self._ranking(task), self.network.labels, self._communicator
            )
        else:
            totals = self._make_totals(details)
        sums = self._sum_over(batches, totals, members)
        return totals.score(sums, self.form)

    def _measure_own(self, task: type[OwnTask], batches: Iterator[Batch], members: int) -> Score:
        """Return the score by a user's functions.

        Raises ConfigError if nothing counts, DivergedError if not finite.
        """
        sums = OwnSums(task, self._looks)
        self._looks = False
        self._passing.add_up_own(self.network, batches, sums)
        if self.helpers and members > 1:
            for part in self.helpers.collect():
                sums.add_part(part)
        self.network.finish()
        self.note = self.note or sums.note
        loss, score, more = sums.sum_over_ranks(self._communicator, self._adds_up)
        examples = int(self._sum_over_ranks(np.array([float(sums.examples)]))[0])
        return Score(loss, score, examples, more=more, form=self.form)

    def _ranking(self, task: type[MultiLabel]) -> Ranking:
        counts, rows = self._label_counts
        return Ranking(counts, rows, self._run.evaluate.propensity, task.kind)

    @cached_property
    def _label_counts(self) -> tuple[np.ndarray, int]:
        """The number of training rows with each label, and of all training rows, over all ranks."""
        train = self._dataset.train
        assert isinstance(train, SparseSplit)
        counts = np.append(train.count_labels(self._dataset.outputs), len(train))
        if self._local:
            counts = self._communicator.allreduce_sum(counts)
        return counts[:-1], int(counts[-1])

    def _sum_over(self, batches: Iterator[Batch], totals: Totals, members: int) -> np.ndarray:
        """Add up ``totals`` over this rank's batches, its ``members`` and all ranks. Collective.

        Raises DivergedError on every rank if totals, or outputs that are whole on a rank, are not
        finite.
        """
        whole = self.network.labels is None
        sums = self._passing.add_up(self.network, batches, totals, whole, self._sink)
        if self.helpers and members > 1:
            for others, margins in self.helpers.collect():
                sums += others
                totals.margins.extend(margins)
        self.network.finish()
        sums = self._sum_over_ranks(sums)
        require_finite(sums)
        return sums

    def take_note(self) -> str:
        """Return `note` once; later calls return an empty text."""
        note = self.note
        self.note = ""
        return note

    @property
    def _place(self) -> tuple[int, int]:
        """This rank's number among those that divide the batches, and the number of these."""
        if not self._spread:
            return 0, 1
        return self._communicator.rank, self._communicator.size

    def _own_batches(self, split: Split, rows: np.ndarray, members: int = 1) -> Iterator[Batch]:
        """Yield the batches of this process, the first of so many ``members``."""
        if not self.network.computes:
            return
        rank, processes = self._place
        place = (rank, processes * members)
        if self.helpers:
            processes = self.helpers.processes
        yield from self._passing.divide(split, rows, place, processes, self.network.device)

    @property
    def _spread(self) -> bool:
        """True if each rank passes some of the batches."""
        return not (self._local or self.network.same_examples or self.network.on_one)

    @property
    def _adds_up(self) -> bool:
        """True if the sums of all ranks are added up; otherwise each rank has all of them."""
        return self._local or self._spread or self.network.on_one

    def _sum_over_ranks(self, values: np.ndarray) -> np.ndarray:
        labels_on = self._dataset.labels_on
        if labels_on not in (None, self._communicator.rank):
            values = np.zeros_like(values)  # one rank alone knows what is right
        if self.network.on_one:
            self._communicator.broadcast(values, 0)
            return values
        if self._adds_up or labels_on is not None:
            return self._communicator.allreduce_sum(values)
        return values

    def calibrate(self) -> None:
        """Load the stores' weights, and calibrate batch normalisations. Collective.

        Their moments become those of the calibration sample.
        """
        if self._is_calibrated:
            self._is_calibrated = False
            return
        if not self._calibrates:
            self.network.load_moments({})
            return
        if not self.network.computes:
            self.network.calibrate()  # rank 0 alone reads the sample
            return
        rows = self._sample()
        ranks = self._communicator.size
        # With fewer rows than ranks, a rank would have none: all pass the same rows.
        if self._spread and ranks <= len(rows) and not self._graph:
            rows = rows[self._communicator.rank :: ranks]
        batch = self._dataset.train.batch(rows).to(self.network.device, self._architecture.dtype)
        self.network.calibrate(*batch.inputs)

    def _sample(self) -> np.ndarray:
        seed = self._run.train.seed
        parts: dict[str, int] = {}
        if self._local:
            parts = {"share": self._communicator.size, "stream": self._communicator.rank}
        return draw_calibration_rows(seed, len(self._dataset.train), self.planned.sampled, **parts)
