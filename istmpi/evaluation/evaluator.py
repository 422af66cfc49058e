"""Scores of the full network on a split, in the form that a run asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from istmpi.data.batch import Batch
from istmpi.engine.partition import Partition
from istmpi.evaluation.blocks import SIDE_BY_SIDE, Parcel, SharedBlocks, ValuesOf
from istmpi.evaluation.choosing import (
    Part,
    Scored,
    pass_here,
    pass_on_one,
    pass_subnets,
    tally_parts,
)
from istmpi.evaluation.fitting import choose_loss, fit_scale, fit_temperature
from istmpi.evaluation.full import FullNetwork
from istmpi.evaluation.likelihood import choose_network
from istmpi.evaluation.logits import Logits
from istmpi.evaluation.measuring import Measuring
from istmpi.evaluation.sample import choose_fitted_rows, may_keep_logits
from istmpi.evaluation.score import Score
from istmpi.evaluation.together import keeps_logits, scores_together

if TYPE_CHECKING:
    from istmpi.outputs import Outputs

Then = tuple[str, bool] | None
"""The arguments of `Evaluator.score`, if it follows."""


class Evaluator(Measuring):
    """Scores a full network in a form, and fits numbers to it. Every method is collective."""

    _kept: Logits | None = None
    """Logits of a pass that took messages, for a temperature, until weights may have changed."""
    _scored: Scored | None = None
    """A score that the choice of the form has left, until weights may have changed."""

    def score(self, split: str = "test", details: bool = False) -> Score:
        """Calibrate, and return the score on a split, as `measure` does.

        A network that rank 0 alone has stays loaded until `release`, for `fit_temperature`."""
        scored = self._scored
        if scored and (scored.split, scored.details) == (split, details):
            return scored.tally.score(self.form)
        if self.plan.summed and self.network is self._merged:
            return self._score_at_once(split, details)
        # A save of the network follows the evaluation that has details.
        if details and self.network is self._blocks and keeps_logits(self.planned):
            return self._score_subnets_with_sample(self._blocks, split)
        self.calibrate()
        score = self.measure(split, details=details)
        # A network of several ranks may be large.
        if not self.network.on_one:
            self.network.release()
        return score

    def _score_at_once(self, split: str, details: bool) -> Score:
        """Calibrate and score in a single pass, whose sums travel in one message. Collective.

        The sample's logits are kept for a temperature."""
        self._kept = self._make_logits("train")
        parts = self._list_parts(split, details)
        outputs = self._pass_all_at_once(parts)
        _, tally = tally_parts(self._passing, outputs, parts, self._make_totals, self._kept)
        return tally.score(self.form)

    def _pass_all_at_once(
        self, parts: Sequence[Part], beside: Parcel | None = None
    ) -> Sequence[torch.Tensor]:
        """Calibrate the full network on the first part, and return its outputs for the batches of
        all parts. Collective. ``beside`` is as for `FullNetwork.pass_at_once`."""
        batches = [batch for part in parts for batch in part.batches]
        lengths = [len(batch.targets) for batch in batches]
        sampled = sum(lengths[: len(parts[0].batches)])
        inputs = []
        for several in zip(*(batch.inputs for batch in batches), strict=True):
            inputs.append(torch.cat(several).to(self._merged.device))
        outputs = self._merged.pass_at_once(inputs, sampled, beside)
        self._merged.release()
        return outputs.to(batches[0].targets.device).split(lengths)

    def _score_subnets_with_sample(self, subnets: SharedBlocks, split: str) -> Score:
        """Calibrate and score subnets with details, and keep the sample's logits for a temperature.
        Outputs for the sample and for the scored examples travel together. Collective."""
        self.calibrate()
        self._kept = self._make_logits("train")
        parts = self._list_parts(split, details=True)
        _, tally = pass_subnets(self._passing, subnets, parts, self._make_totals, self._kept)
        subnets.release()
        return tally.score(self.form)

    def release(self) -> None:
        """Free the memory of loaded weights, which are out of date after a round."""
        self._is_calibrated = False
        self._kept = None
        self._scored = None
        self._merged.release()
        if self._blocks:
            self._blocks.release()

    def arrange(
        self, deal: Partition, form: str, values_of: ValuesOf | None = None, then: Then = None
    ) -> None:
        """Score the network in ``form`` from now on; for best, in the form that scores better now,
        and merged if no units are dealt. Collective.

        ``values_of`` is as for `SharedBlocks`. ``then``: the `score` that follows."""
        self.network = self._merged
        self.form = "merged"
        self._scored = None
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
            form = self._choose_better(subnets, then)
        self.form = form
        self.network = self._merged
        if form in SIDE_BY_SIDE:
            self.network = subnets

    def _choose_better(self, subnets: SharedBlocks, then: Then) -> str:
        """Return the form that scores better now: blocks or merged. Collective.

        The full network stays loaded and calibrated if it wins, for its weights take most bytes.
        """
        if then and scores_together(self.planned):
            return self._choose_and_score(subnets, *then)
        blocks = self._score_of_form(subnets)
        subnets.release()
        merged = self._score_of_form(self._merged)
        # Ranks may add up in another order, and all must choose the same form.
        scores = np.array([blocks, merged])
        self._communicator.broadcast(scores, root=0)
        form = self._name_better(*scores)
        self._is_calibrated = form == "merged"
        return form

    def _choose_by_sums(
        self, subnets: SharedBlocks, parts: Sequence[Part], split: str, details: bool
    ) -> str:
        """Return the better form, and keep its score on a split. Collective.

        The outputs of subnets travel with what units contribute to those of the full network."""
        parcel = subnets.pack(pass_here(self._passing, subnets, parts))
        subnets.release()
        self.network = self._merged
        outputs: dict[str, Sequence[Outputs]] = {}
        outputs["merged"] = self._pass_all_at_once(parts, beside=parcel)
        outputs["blocks"] = subnets.unpack(parcel)
        logits = {}
        tallies = {}
        scores = {}
        for form in outputs:
            logits[form] = self._make_logits("train")
            tallies[form] = tally_parts(
                self._passing, outputs[form], parts, self._make_totals, logits[form]
            )
            scores[form] = tallies[form][0].score(form).score
        # All ranks must choose the same form, so rank 0's scores decide.
        both = np.array([scores["blocks"], scores["merged"]])
        self._communicator.broadcast(both, root=0)
        form = self._name_better(*both)
        self._kept = logits[form]
        self._scored = Scored(split, details, tallies[form][1])
        return form

    def _list_parts(self, split: str, details: bool) -> list[Part]:
        """Return the sample, empty if no pass needs it, and the scored examples of a split."""
        sample: list[Batch] = []
        if self.planned.passes_sample:
            sample += self._own_batches(self._dataset.train, self._sample())
        examples = self._dataset.splits[split]
        scored = [*self._own_batches(examples, self._passing.choose_rows(examples))]
        return [Part(sample), Part(scored, details)]

    def _name_better(self, blocks: float, merged: float) -> str:
        """Return the form of the better score; release the full network if it has the other."""
        if not self._dataset.scoring.higher_is_better:
            blocks, merged = merged, blocks
        if blocks > merged:
            self._merged.release()
            return "blocks"
        # They are those of the subnets.
        self._kept = None
        return "merged"

    def _choose_and_score(self, subnets: SharedBlocks, split: str, details: bool) -> str:
        """Return the better form, and keep its score on a split. Collective.

        All outputs of subnets travel together, and rank 0 tells all sums of the full network."""
        self.network = subnets
        self.calibrate()
        parts = self._list_parts(split, details)
        if self.plan.summed:
            return self._choose_by_sums(subnets, parts, split, details)
        self._kept = self._make_logits("train")
        blocks = pass_subnets(self._passing, subnets, parts, self._make_totals, self._kept)
        blocks_score = blocks[0].score("blocks").score
        subnets.release()
        self.network = self._merged
        self.calibrate()
        # All ranks must choose the same form, so rank 0's scores decide.
        merged, blocks_score = pass_on_one(
            self._passing, self._merged, parts, self._make_totals, self._communicator, blocks_score
        )
        form = self._name_better(blocks_score, merged[0].score("merged").score)
        tallies = {"blocks": blocks, "merged": merged}[form]
        self._scored = Scored(split, details, tallies[1])
        return form

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
        if self.network is self._merged:
            return
        self._sink = self._make_logits(split)
        self._kept = self._sink

    def _make_logits(self, split: str) -> Logits | None:
        """Return logits that a pass over a split fills for a temperature; None if it needs none, or
        if they are too many."""
        if self._local or not self._dataset.scoring.one_class:
            return None
        if not may_keep_logits(len(self._list_rows(split)), self._dataset.outputs):
            return None
        return Logits(split, self._dataset.outputs)

    def fit_temperature(self, split: str) -> float:
        """Fit a classifier's temperature on a split's scored examples; return it on rank 0, and
        about it or 1 on other ranks. Collective.

        ``train`` stands for the calibration sample. Weights must be those of the last score or
        calibration.
        """
        logits = self._kept
        if logits is None or logits.split != split:
            logits = self._pass_for_logits(split)
        has_all = self.network.on_one or not self._adds_up
        if not has_all or self._dataset.labels_on is not None:
            return fit_temperature(*logits.join(), self._sum_over_ranks)
        # Rank 0 has all logits, and other ranks need no temperature.
        if self._communicator.rank:
            return 1.0
        return fit_temperature(*logits.join(), _return_as_it_is)

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


def _return_as_it_is(values: np.ndarray) -> np.ndarray:
    return values
