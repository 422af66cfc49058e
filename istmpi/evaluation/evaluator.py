"""Scores of the full network on a split, after calibration on a sample of the training data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import log
from typing import TYPE_CHECKING

import numpy as np
import torch

from istmpi.code import calling
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.cost.calibration import evaluation_share
from istmpi.cost.evaluation import evaluation_memory, evaluation_plan, windows_together
from istmpi.data.batch import Batch
from istmpi.data.dataset import Dataset, Split
from istmpi.devices import HOST, with_room
from istmpi.engine.partition import Partition
from istmpi.engine.store import ParameterStore
from istmpi.errors import DivergedError
from istmpi.evaluation.blocks import SharedBlocks
from istmpi.evaluation.fitting import fitted_scale, fitted_temperature
from istmpi.evaluation.full import FullNetwork
from istmpi.evaluation.own import OwnSums, joined_loss
from istmpi.evaluation.sample import calibration_rows, sampled_of, scored_in_training, scored_of
from istmpi.exits import outputs_of, weighted_loss
from istmpi.models.architecture import Architecture
from istmpi.multilabel import Ranking, parts_of
from istmpi.names import is_own
from istmpi.tasks import task_of
from istmpi.trees import tensors_of

if TYPE_CHECKING:
    from istmpi.exits import Outputs


FITTED_ON = 64


@dataclass(frozen=True)
class Score:
    """A network's result on a split: mean loss, mean score (such as accuracy) and number of scored
    examples."""

    loss: float
    """The loss as in training, of standardised targets if the run has them. NaN for a score of a
    user's program."""
    score: float
    """The score in the units of the data; with several exits, that of the last exit."""
    examples: int
    exits: tuple[float, ...] | None = None
    """The score of every exit if there are several, otherwise None."""
    bits_per_byte: float | None = None
    more: Mapping[str, float] | None = None
    form: str = "merged"
    """The form of the network that was scored (evaluate.form)."""


class Evaluator:
    """Scores a full network on splits. Every method is collective."""

    def __init__(
        self,
        run: Run,
        architecture: Architecture,
        dataset: Dataset,
        store: ParameterStore,
        communicator: Communicator,
        trained_on: int | None = None,
        device: torch.device = HOST,
    ):
        """``trained_on``: the number of ranks in training, if it differs from the number here.

        ``device``: the device of networks that fit into its memory.
        """
        self._run, self._dataset, self._communicator = run, dataset, communicator
        self._architecture, self._store = architecture, store
        self._local = run.data.placement == "local"
        self._task = task_of(dataset.scoring, run.train.multi_label_loss)
        self._graph, self._ranks_labels = self._task.of_nodes, self._task.ranks_labels
        ranks = trained_on or communicator.size
        self.sampled = sampled_of(run, architecture, dataset, ranks)
        """The number of training examples to calibrate on, over all ranks."""
        self._calibrates = bool(architecture.batch_norms)
        if self._local:
            passes = []
        elif self._graph:
            passes = [len(dataset.test.graph)] * (1 + self._calibrates)
        else:
            passes = [
                self.sampled * self._calibrates,
                *map(len, self._batches(len(self._scored(len(dataset.test))))),
            ]
        memory, spread = evaluation_memory(run, architecture, ranks), self._ranks_labels
        self.plan = evaluation_plan(
            architecture, communicator.size, memory, passes, self._local, spread=spread
        )
        device = with_room(
            device, sum(values.nbytes for values in store.tensors.values()) * communicator.size
        )
        self.network: FullNetwork | SharedBlocks = FullNetwork(
            architecture,
            store,
            communicator,
            self.plan.sharded,
            self._local,
            spread,
            self.plan.by_units,
            device,
        )
        self._merged, self.form = self.network, "merged"
        self._blocks: SharedBlocks | None = None
        self._looks = communicator.rank == 0
        self.note = ""
        """A sentence about the user's functions that a run should report once; empty if there is
        none."""

    @property
    def share(self) -> float:
        """The share of a run's FLOPs that its evaluations take; 0 for a whole graph, whose FLOPs
        are not counted."""
        run, data, ranks = self._run, self._dataset, self._communicator.size
        if self._graph:
            return 0.0
        scored = (ranks if self._local else 1) * scored_in_training(run, data)
        passed = scored + (self.sampled if self._architecture.batch_norms else 0)
        return evaluation_share(
            run, self._architecture, ranks, len(data.train), passed, self.plan.sharded
        )

    def score(self, split: str = "test") -> Score:
        self.calibrate()
        score = self.measure(self._dataset.splits[split])
        self.network.release()
        return score

    @property
    def form_of_run(self) -> str:
        """The form in which the run's network is scored: merged, blocks, or best (the better of
        both)."""
        return self._run.evaluate.form or (
            "merged" if self._run.method.redeal or self._local else "best"
        )

    def arrange(self, deal: Partition, form: str) -> None:
        """Score the network in ``form`` from now on; for best, in the form with the better score
        now. Collective.

        The form is merged if no units are dealt.
        """
        self.network, self.form = self._merged, "merged"
        if not deal.units or form == "merged":
            return
        if self._blocks is None or self._blocks.deal.digest != deal.digest:
            self._blocks = SharedBlocks(
                self._architecture, self._store, self._communicator, deal, self._merged.device
            )
        networks = {"merged": self._merged, "blocks": self._blocks}
        if form == "best":
            split, rows = self._dataset.splits.get("validation"), None
            if split is None:
                split, rows = self._dataset.train, self._sample()
            scores = {}
            for name, self.network in networks.items():
                self.calibrate()
                scores[name] = self._communicator.broadcast_from_root(
                    self.measure(split, rows).score
                )
                self.network.release()
            form = (max if self._dataset.scoring.higher_is_better else min)(
                scores, key=scores.__getitem__
            )
        self.network, self.form = networks[form], form

    def measure(self, split: Split, rows: np.ndarray | None = None) -> Score:
        """Return the score on ``rows`` of a split, by default the run's rows. Raises DivergedError
        if not finite."""
        rows = self._scored(len(split)) if rows is None else rows
        if self._ranks_labels:
            return self._ranked(split, rows)
        if self._task.of_trees:
            return self._own_score(split, rows)
        weights = self._run.train.exit_weights

        def totals_of(outputs: Outputs, batch: Batch) -> np.ndarray:
            loss = float(
                weighted_loss(self._task.loss, outputs, batch.targets, weights, reduction="sum")
            )
            points = [
                self._task.points(*self._in_units(each, batch.targets))
                for each in outputs_of(outputs)
            ]
            return np.concatenate([[loss, batch.examples], np.reshape(points, -1)])

        numbers = self._task.numbers
        shape = (2 + self._architecture.exits * numbers,)
        loss, examples, *points = self._sum_over(split, rows, shape, totals_of).tolist()
        means = [each / examples for each in points]
        scores = tuple(
            self._task.of_mean(*means[at : at + numbers]) for at in range(0, len(means), numbers)
        )
        of_token = self._dataset.bytes_per_token
        bits = loss / examples / log(2) / of_token if of_token else None
        more = self._task.more(self._dataset.outputs, *means[-numbers:])
        exits = scores if len(scores) > 1 else None
        return Score(loss / examples, scores[-1], int(examples), exits, bits, more, self.form)

    def _own_score(self, split: Split, rows: np.ndarray) -> Score:
        """Return the score by a user's functions. Raises ConfigError if nothing counts,
        DivergedError if not finite."""
        sums, self._looks = OwnSums(self._task, self._looks), False
        for batch in self._own_batches(split, rows):
            with torch.no_grad():
                sums.add(self._outputs(batch), batch)
        self.network.finish()
        self.note = self.note or sums.note
        loss, score, more = sums.over_ranks(self._communicator, self._local or self._spread)
        examples = int(self._summed(np.array([float(sums.examples)]))[0])
        return Score(loss, score, examples, more=more, form=self.form)

    def _in_units(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._dataset.targets is None:
            return outputs, targets
        mean, std = (torch.from_numpy(values).to(outputs) for values in self._dataset.targets)
        return outputs * std + mean, targets * std + mean

    def _ranked(self, split: Split, rows: np.ndarray) -> Score:
        ranking, labels = self._ranking, self.network.labels

        def totals_of(outputs: Outputs, batch: Batch) -> np.ndarray:
            first, ranks = 0 if labels is None else labels.start, self._communicator.size
            targets = batch.targets.to(HOST)
            numbers = parts_of(outputs_of(outputs)[-1].cpu(), first, targets, self._task.kind)
            if labels is None:
                return ranking.sums([numbers], targets)
            flat = self._communicator.allgatherv(numbers.reshape(-1), [numbers.size] * ranks)
            return ranking.sums(flat.reshape(ranks, *numbers.shape), targets)

        sums = self._sum_over(split, rows, (Ranking.size,), totals_of)
        scores = Ranking.scores(sums)
        score = scores.pop(self._task.score)
        return Score(float(sums[0] / sums[1]), score, int(sums[1]), more=scores, form=self.form)

    @cached_property
    def _ranking(self) -> Ranking:
        train = self._dataset.train
        counts = np.append(train.label_counts(self._dataset.outputs), len(train))
        if self._local:
            counts = self._communicator.allreduce_sum(counts)
        return Ranking(counts[:-1], int(counts[-1]), self._run.evaluate.propensity, self._task.kind)

    def _sum_over(
        self,
        split: Split,
        rows: np.ndarray,
        shape: tuple[int, ...],
        totals_of: Callable[[Outputs, Batch], np.ndarray],
    ) -> np.ndarray:
        """Sum ``totals_of(outputs, batch)`` over the batches of ``rows`` of a split. Collective.

        Raises DivergedError on every rank if totals, or outputs that are whole on a rank, are not
        finite.
        """
        totals, alone = np.zeros(shape), self.network.labels is None
        for batch in self._own_batches(split, rows):
            outputs = self._outputs(batch)
            totals += totals_of(outputs, batch)
            if alone and not all(output.isfinite().all() for output in tensors_of(outputs)):
                totals[:] = np.nan  # so that all ranks see it
        self.network.finish()
        totals = self._summed(totals)
        if not np.isfinite(totals).all():
            error = DivergedError("the outputs of the full network are not finite")
            error.everywhere = True
            raise error
        return totals

    def _outputs(self, batch: Batch) -> Outputs:
        name = self._run.model.name
        with calling(f"{name}: forward") if self._task.of_trees or is_own(name) else nullcontext():
            return self.network(*batch.inputs)

    def take_note(self) -> str:
        """Return `note` once; later calls return an empty text."""
        note, self.note = self.note, ""
        return note

    def _own_batches(self, split: Split, rows: np.ndarray) -> Iterator[Batch]:
        first, step = (self._communicator.rank, self._communicator.size) if self._spread else (0, 1)
        for part in islice(self._batches(len(rows), step), first, None, step):
            yield split.batch(rows[part]).to(self.network.device, self._architecture.dtype)

    @property
    def _spread(self) -> bool:
        return not self._local and not self.network.same_examples

    def _summed(self, values: np.ndarray) -> np.ndarray:
        return self._communicator.allreduce_sum(values) if self._local or self._spread else values

    def calibrate(self) -> None:
        """Load the stores' weights, and set moments of batch normalisations to the calibration
        sample's. Collective."""
        if not self._calibrates:
            self.network.load_moments({})
            return
        rows, ranks = self._sample(), self._communicator.size
        if self._spread and ranks <= len(rows) and not self._graph:
            rows = rows[self._communicator.rank :: ranks]
        batch = self._dataset.train.batch(rows).to(self.network.device, self._architecture.dtype)
        self.network.calibrate(*batch.inputs)

    def temperature(self, split: str) -> float:
        """Fit a classifier's temperature on a split's scored examples ("train": the calibration
        sample). Collective."""
        examples = self._dataset.splits[split]
        rows = self._sample() if split == "train" else self._scored(len(examples))
        self.network.load_moments(self.network.moments)
        logits = [torch.zeros(0, self._dataset.outputs, dtype=torch.float64)]
        labels = [torch.zeros(0, dtype=torch.int64)]
        for batch in self._own_batches(examples, rows):
            logits.append(outputs_of(self._outputs(batch))[-1].double().cpu())
            labels.append(batch.targets.cpu())
        self.network.finish()
        self.network.release()
        fitted = fitted_temperature(torch.cat(logits), torch.cat(labels), self._summed)
        return self._communicator.broadcast_from_root(fitted)

    def fitted_scale(self) -> dict[str, float]:
        """Fit the factors of sums over units to the training loss at the stores' weights.
        Collective.

        The loss is over up to `FITTED_ON` calibration examples (on each rank, if data are local). A
        rank has at least one example, or two with batch normalisations. Examples are repeated if
        they are too few.
        """
        rows = self._sample()
        share, place = (1, 0) if self._local else (self._communicator.size, self._communicator.rank)
        count = max(min(len(rows), FITTED_ON), share * (1 + bool(self._architecture.batch_norms)))
        rows = rows[np.arange(count) * len(rows) // count]
        batch = self._dataset.train.batch(rows[place::share]).to("cpu", self._architecture.dtype)
        weights = self._run.train.exit_weights
        examples = sum(self._communicator.allgather(batch.examples)) if self._task.of_trees else 0

        def loss(outputs: Outputs) -> torch.Tensor:
            if self._task.of_trees:
                return joined_loss(self._task.losses(outputs, batch), examples, self._communicator)
            return weighted_loss(self._task.loss, outputs, batch.targets, weights, reduction="sum")

        return fitted_scale(self._architecture, self._store, self._communicator, batch, loss)

    def _sample(self) -> np.ndarray:
        share, stream = (
            (self._communicator.size, self._communicator.rank) if self._local else (1, 0)
        )
        return calibration_rows(self._run, len(self._dataset.train), self.sampled, share, stream)

    def _scored(self, length: int) -> np.ndarray:
        count = scored_of(self._run, self._dataset, length)
        return np.arange(length) if count >= length else np.arange(count) * length // count

    def _batches(self, length: int, ranks: int = 1) -> Iterator[np.ndarray]:
        batch, data = min(self._run.evaluate.batch, -(-length // ranks)), self._dataset
        if many := self._task.many_outputs(data.features, data.outputs):
            batch = windows_together(batch, many)
        for first in range(0, length, max(batch, 1)):
            yield np.arange(first, min(first + batch, length))
