"""Scores of the full network on a split, after calibration on a sample of the training data."""

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
from istmpi.engine.partition import Partition
from istmpi.engine.store import ParameterStore
from istmpi.errors import DivergedError
from istmpi.evaluation.blocks import SIDE_BY_SIDE, SharedBlocks, ValuesOf
from istmpi.evaluation.fitting import choose_loss, fit_scale, fit_temperature
from istmpi.evaluation.full import FullNetwork
from istmpi.evaluation.further import join_over_ranks
from istmpi.evaluation.in_group import Helpers
from istmpi.evaluation.likelihood import choose_network
from istmpi.evaluation.logits import Logits
from istmpi.evaluation.own import OwnSums
from istmpi.evaluation.passing import Passing
from istmpi.evaluation.planning import may_keep_logits, plan_evaluation
from istmpi.evaluation.sample import (
    choose_fitted_rows,
    count_sampled,
    draw_calibration_rows,
)
from istmpi.evaluation.score import RankingTotals, Score, Totals
from istmpi.multilabel import Ranking
from istmpi.network.architecture import Architecture
from istmpi.tasks import MultiLabel, OwnTask


class Evaluator:
    """Scores a full network on splits. Every method is collective."""

    _is_calibrated = False
    """True if the full network is loaded and calibrated already."""
    _kept: Logits | None = None
    """The subnets' logits by which the form was chosen, until weights may have changed."""
    _sink: Logits | None = None

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
        self._passing = Passing(run, architecture, dataset)
        self._task = self._passing.task
        self.helpers = helpers
        self._graph = isinstance(dataset.train, GraphSplit)
        ranks = trained_on or communicator.size
        self.sampled = count_sampled(run, architecture, dataset, ranks)
        """The number of training examples to calibrate on, over all ranks."""
        self._calibrates = bool(architecture.batch_norms)
        self.plan = plan_evaluation(run, architecture, dataset, communicator.size, ranks)
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
        )

    def score(self, split: str = "test", details: bool = False) -> Score:
        """Calibrate, and return the score on a split, as `measure` does.

        A network that rank 0 alone has stays loaded until `release`, for `fit_temperature`."""
        self.calibrate()
        score = self.measure(split, details=details)
        # A network of several ranks may be large.
        if not self.network.on_one:
            self.network.release()
        return score

    def release(self) -> None:
        """Free the memory of loaded weights, which are out of date after a round."""
        self._is_calibrated = False
        self._kept = None
        self._merged.release()
        if self._blocks:
            self._blocks.release()

    def arrange(self, deal: Partition, form: str, values_of: ValuesOf | None = None) -> None:
        """Score the network in ``form`` from now on; for best, in the form that scores better now,
        and merged if no units are dealt. Collective.

        ``values_of`` is as for `SharedBlocks`."""
        self.network = self._merged
        self.form = "merged"
        if not deal.units or form == "merged":
            return
        build = choose_network(form, self._local)
        # A deal that is kept for the whole run is built once.
        subnets = self._blocks
        if subnets is None or type(subnets) is not build or subnets.deal.digest != deal.digest:
            subnets = build(
                self._architecture,
                self._store,
                self._communicator,
                deal,
                self._merged.device,
                columns=self._dataset.columns,
                summed=form == "sum",
            )
            self._blocks = subnets
        subnets.values_of = values_of
        if form == "best":
            form = self._choose_better(subnets)
        self.form = form
        self.network = self._merged
        if form in SIDE_BY_SIDE:
            self.network = subnets

    def _choose_better(self, subnets: SharedBlocks) -> str:
        """Return the form that scores better now: blocks or merged. Collective.

        The full network stays loaded and calibrated if it wins, for its weights take most bytes.
        """
        blocks = self._score_of_form(subnets)
        subnets.release()
        merged = self._score_of_form(self._merged)
        # Ranks may add up in another order, and all must choose the same form.
        scores = np.array([blocks, merged])
        self._communicator.broadcast(scores, root=0)
        if not self._dataset.scoring.higher_is_better:
            scores = -scores
        if scores[0] > scores[1]:
            self._merged.release()
            return "blocks"
        self._is_calibrated = True
        return "merged"

    def _score_of_form(self, network: FullNetwork | SharedBlocks) -> float:
        """Return this rank's score of a form of the network on the validation split or, if there is
        none, on the calibration sample. Collective."""
        self.network = network
        self.calibrate()
        if "validation" in self._dataset.splits:
            self._keep_logits("validation")
            score = self.measure("validation")
        else:
            self._keep_logits("train")
            score = self.measure("train", self._sample())
        self._sink = None
        return score.score

    def _keep_logits(self, split: str) -> None:
        """Let the next pass leave the logits of subnets, which took messages; not too many."""
        if self.network is self._merged or self._local or not self._dataset.scoring.one_class:
            return
        if may_keep_logits(len(self._list_rows(split)), self._dataset.outputs):
            self._sink = Logits(split, self._dataset.outputs)
            self._kept = self._sink

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
            join = partial(join_over_ranks, self._dataset, self._communicator, self._adds_up)
            totals = self._passing.make_totals(join, details)
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
        if not np.isfinite(sums).all():
            error = DivergedError("the outputs of the full network are not finite")
            error.everywhere = True
            raise error
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

    def fit_temperature(self, split: str) -> float:
        """Fit a classifier's temperature on a split's scored examples; return it on rank 0, and
        about it or 1 on other ranks. Collective.

        ``train`` stands for the calibration sample. Weights must be those of the last score or
        calibration.
        """
        logits = self._kept
        if logits is None or logits.split != split or self.network is self._merged:
            logits = self._pass_for_logits(split)
        if not self.network.computes:
            return 1.0
        add_up = self._sum_over_ranks
        if self.network.on_one:
            add_up = _return_as_it_is  # rank 0 has all logits
        return fit_temperature(*logits.join(), add_up)

    def _pass_for_logits(self, split: str) -> Logits:
        # If the weights were released, their moments are still right.
        if not self.network.loaded:
            self.network.load_moments(self.network.moments)
        logits = Logits(split, self._dataset.outputs)
        for batch in self._own_batches(self._dataset.splits[split], self._list_rows(split)):
            logits.add(self._passing.compute(self.network, batch), batch)
        self.network.finish()
        return logits

    def _list_rows(self, split: str) -> np.ndarray:
        if split == "train":
            return self._sample()
        return self._passing.choose_rows(self._dataset.splits[split])

    def fit_scale(self) -> dict[str, float]:
        """Fit the factors of sums over units to the training loss at the stores' weights.

        Collective. The loss is over up to 64 calibration examples (on each rank, if data
        are local). A rank has at least one example, or two with batch normalisations. Examples are
        repeated if they are too few.
        """
        least = 2 if self._calibrates else 1  # one value has no variance
        rank = 0
        ranks = 1
        if not self._local:
            rank = self._communicator.rank
            ranks = self._communicator.size
        rows = choose_fitted_rows(self._sample(), rank, ranks, least)
        batch = self._dataset.train.batch(rows).to("cpu", self._architecture.dtype)
        loss = choose_loss(self._task, self._run.train, batch, self._communicator)
        return fit_scale(self._architecture, self._store, self._communicator, batch, loss)

    def _sample(self) -> np.ndarray:
        parts: dict[str, int] = {}
        if self._local:
            parts = {"share": self._communicator.size, "stream": self._communicator.rank}
        return draw_calibration_rows(self._run, len(self._dataset.train), self.sampled, **parts)


def _return_as_it_is(values: np.ndarray) -> np.ndarray:
    return values
