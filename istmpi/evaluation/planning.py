"""Plans a run's evaluations from its settings, its network and its data: the form of the network
and where it lies, what each evaluation sends, and in which rounds there is one. Without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from istmpi.comm.objects import SLOT
from istmpi.config import Run
from istmpi.config.methods import MethodSpec, find_method_spec
from istmpi.cost.calibration import (
    SAMPLED,
    calibration_examples,
    forward_flops,
    rounds_flops,
)
from istmpi.cost.counts import Amount
from istmpi.cost.evaluation import FLOPS_A_BYTE, evaluation_memory, evaluation_plan
from istmpi.cost.evaluation_plan import EvaluationPlan
from istmpi.cost.moments import count_moments
from istmpi.cost.passing import pass_bytes, windows_together
from istmpi.cost.run_cost import phase_costs
from istmpi.data.dataset import Dataset
from istmpi.data.graph.split import GraphSplit
from istmpi.engine.lengths import Number
from istmpi.evaluation.further import count_further
from istmpi.evaluation.sample import TOGETHER_BYTES, count_scored, may_keep_logits
from istmpi.network.architecture import Architecture
from istmpi.tasks import MultiLabel, OwnTask

SHARE = Fraction(15, 100)
"""The largest part of a run's bytes, and of its time on a link of `FLOPS_A_BYTE`, that evaluations
take by default. The last round is evaluated in any case."""
MOST = 10
"""The most evaluations of a run by default."""


def choose_form(run: Run) -> str:
    """Return the form in which a run's network is scored: merged, blocks, best (the better of
    both), sum or likelihood."""
    if find_method_spec(run.method.name).sums_outputs:
        return "sum"
    if run.evaluate.form:
        return run.evaluate.form
    if run.method.redeal or run.data.placement == "local":
        return "merged"
    return "best"


def divide(batch: int, data: Dataset, length: int, ranks: int = 1) -> Iterator[np.ndarray]:
    """Yield the places of ``length`` scored examples in batches of at most ``batch``: at least one
    for each rank."""
    # A small split is divided, so that every rank has a batch.
    batch = min(batch, -(-length // ranks))
    outputs = data.scoring.many_outputs(data.features, data.outputs)
    if outputs:
        batch = windows_together(batch, outputs)
    for first in range(0, length, max(batch, 1)):
        yield np.arange(first, min(first + batch, length))


@dataclass(frozen=True)
class Work:
    """The work of an evaluation, or of all rounds."""

    sent: Number
    """Bytes of all ranks."""
    on_line: Number
    """Bytes on the busiest rank's line, in one direction."""
    flops: Number
    """FLOPs of the busiest rank."""

    @property
    def price(self) -> Number:
        """The time of FLOPs and bytes, in FLOPs."""
        return self.flops + FLOPS_A_BYTE * self.on_line


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of a network on ``ranks`` ranks, as its run plans them."""

    run: Run
    architecture: Architecture
    data: Dataset
    ranks: int
    trained_on: int
    """The number of ranks in training, by which the sample for calibration is chosen."""

    @staticmethod
    def in_training(run: Run, architecture: Architecture, data: Dataset, ranks: int) -> Evaluations:
        return Evaluations(run, architecture, data, ranks, trained_on=ranks)

    @property
    def spec(self) -> MethodSpec:
        """The method of the run, the first one of two."""
        return find_method_spec(self.run.method.name)

    @property
    def form(self) -> str:
        """The form of the network, as `choose_form` returns it."""
        return choose_form(self.run)

    @property
    def is_local(self) -> bool:
        """True if data never leave their rank."""
        return self.run.data.placement == "local"

    @property
    def is_graph(self) -> bool:
        return isinstance(self.data.train, GraphSplit)

    @cached_property
    def plan(self) -> EvaluationPlan:
        """The place of the network, and what an evaluation sends."""
        data = self.data
        # A user's loop passes its own batches on every rank; columns and labels may be elsewhere.
        elsewhere = data.network is not None or data.columns or data.labels_on is not None
        room = evaluation_memory(self.run, self.architecture, self.trained_on, self.is_local)
        plan = evaluation_plan(
            self.architecture,
            self.ranks,
            room=room,
            passes=self.list_passes(),
            local=self.is_local,
            spread=issubclass(data.scoring, MultiLabel),
            on_one=not elsewhere,
            present=self.list_present(self.run),
            numbers=self.count_numbers(),
            at_once=self._count_at_once(),
        )
        if self.is_local or not issubclass(data.scoring, OwnTask):
            return plan
        # Ranks gather a user's sums with their names, and agree that all could read them: two
        # objects, which fit into a slot unless the names are long.
        named = 2 * SLOT * self.ranks * (self.ranks - 1)
        sums = None
        if plan.sums is not None:
            sums = plan.sums + named
        return replace(plan, sent=plan.sent + named, sums=sums)

    def _count_at_once(self) -> int:
        """Return the number of examples, of the sample and those scored, that all ranks may pass
        through the full network at once; 0 if they may not."""
        data = self.data
        usual = (
            self._scores_full_network
            and not self.is_local
            and not self.is_graph
            and "validation" not in data.splits
            and not self.run.grows
            # Another method may have other weights on every rank.
            and not self.run.method.finish
        )
        if not usual or not self.may_pass_together:
            return 0
        sampled = 0
        if self.passes_sample:
            sampled = self.sampled
        # The sample's outputs stay until a save.
        if not may_keep_logits(sampled, data.outputs):
            return 0
        return sampled + self.scored

    @property
    def _scores_full_network(self) -> bool:
        """True if an evaluation scores the full network, perhaps beside its subnets."""
        if self.form != "best":
            return self.form == "merged"
        return self.may_send_both

    @property
    def may_send_both(self) -> bool:
        """True if outputs of subnets for the scored examples may travel before it is known that
        they are needed."""
        are_few = self.count_output_bytes(self.scored) <= TOGETHER_BYTES
        # The members of a replica group would not help.
        return are_few and self.run.train.group_size <= 1

    @property
    def passes_sample(self) -> bool:
        """True if a pass of all examples has the sample: for moments, for a classifier's
        temperature, or to choose the form."""
        if self.architecture.batch_norms or self.data.scoring.one_class:
            return True
        return self.form == "best"

    @property
    def may_pass_together(self) -> bool:
        """True if the sample and the scored examples may pass together."""
        data = self.data
        return (
            # Other tasks have sums of their own.
            not issubclass(data.scoring, OwnTask | MultiLabel)
            and data.labels_on is None
            and not data.columns
            # Both batches are in the memory at once.
            and max(self.scored, self.sampled) <= self.run.evaluate.batch
        )

    @cached_property
    def moments(self) -> int | None:
        """The number of values in the moments of all subnets; None if deals decide it."""
        return count_moments(self.run, self.architecture, self.ranks)

    @cached_property
    def every(self) -> int:
        """The rounds between evaluations: the run's setting, or as few as `SHARE` allows.

        Only bytes and FLOPs count, and no clock: a run repeats bit for bit. If the validation split
        decides when a run ends, or which network is kept, there are `MOST` evaluations. A user's
        loop evaluates by itself.
        """
        run = self.run
        rounds = run.train.rounds
        fixed = run.evaluate.every or run.watches_validation or self.data.network is not None
        if fixed or self.ranks == 1:
            return run.evaluate.rounds_between(rounds)
        training, evaluation = self._count_work()
        allowed = SHARE / (1 - SHARE)
        affordable: Number = MOST
        if evaluation.sent:
            affordable = min(affordable, allowed * training.sent / evaluation.sent)
        if evaluation.price:
            affordable = min(affordable, allowed * training.price / evaluation.price)
        count = max(int(affordable), 1)
        if count == MOST:
            return run.evaluate.rounds_between(rounds)
        return max(-(-rounds // count), 1)

    @property
    def rounds(self) -> list[int]:
        """The rounds, from 1, after which the run is evaluated."""
        last = self.run.train.rounds
        return [*range(self.every, last, self.every), last]

    @property
    def scored(self) -> int:
        """The number of examples of the test split that are scored."""
        return count_scored(self.run.evaluate, self.data, len(self.data.test))

    @property
    def scored_in_training(self) -> int:
        """The number of examples that an evaluation in training scores: this rank's, if data are
        local."""
        split = self.data.test
        if self.run.watches_validation:
            split = self.data.splits.get("validation", split)
        return count_scored(self.run.evaluate, self.data, len(split))

    @cached_property
    def sampled(self) -> int:
        """The number of training examples to calibrate on, over all ranks."""
        if self.is_graph:
            return self.run.evaluate.calibration_examples or SAMPLED
        examples = len(self.data.train)
        scored = self.scored_in_training
        sampled = calibration_examples(
            self.run, self.architecture, self.trained_on, examples, scored
        )
        if self.is_local:
            return sampled
        return min(sampled, examples)

    def list_batches(self, examples: int) -> list[int]:
        """Return the sizes of the batches of so many examples."""
        return [len(part) for part in divide(self.run.evaluate.batch, self.data, examples)]

    def list_passes(self) -> list[int]:
        """Return the number of examples of each pass of an evaluation, calibration first; nothing
        if each rank passes its own."""
        if self.is_local:
            return []
        calibrates = bool(self.architecture.batch_norms)
        if self.is_graph:
            assert isinstance(self.data.test, GraphSplit)
            nodes = len(self.data.test.graph)
            return [nodes, nodes] if calibrates else [nodes]
        sampled = 0
        if calibrates:
            sampled = self.sampled
        return [sampled, *self.list_batches(self.scored)]

    def count_numbers(self) -> int:
        """Return how many numbers ranks add up for a score."""
        task = self.data.scoring
        if issubclass(task, OwnTask):
            # The count of examples.
            return 1
        numbers = 2 + len(self.architecture.table.output_names) * task.numbers
        return numbers + self.count_further(details=False)

    def count_further(self, details: bool) -> int:
        """Return how many numbers ranks add up for further scores."""
        return count_further(self.data.scoring, self.data, self.run.evaluate, details)

    def count_flops(self) -> Number:
        """Return the FLOPs of the busiest rank in an evaluation; 0 for a whole graph, whose FLOPs
        are not counted."""
        if self.is_graph:
            return 0
        examples = self.scored_in_training
        if self.architecture.batch_norms:
            examples += self.sampled
        if self.plan.summed:
            examples = self.plan.at_once
        alone = self.plan.on_one or self.is_local
        ranks = 1 if alone else self.ranks
        return examples * forward_flops(self.architecture, ranks, self.plan.sharded)

    def find_share(self) -> float:
        """Return evaluations' share of the FLOPs of a run's busiest rank."""
        evaluation = self.count_flops()
        examples = len(self.data.train)
        rounds = rounds_flops(self.run, self.architecture, self.ranks, examples)
        return float(evaluation / (evaluation + rounds))

    def count_groups(self) -> int | None:
        """Return how many replica groups evaluate with all members, by
        `istmpi.evaluation.in_group`; None if that depends on scores, or on the size of images."""
        if self.form == "best" or self.run.grows:
            return None
        if self.form != "merged" or self.plan.sharded or self.plan.by_units:
            return 0
        return 1 if self.plan.on_one else self.ranks

    def count_pass_bytes(self) -> Amount:
        """Return the least bytes of a pass of an evaluation on a rank."""
        gathers = bool(self.plan.sharded) and not self.is_local
        at_once = self.plan.at_once
        return pass_bytes(self.run, self.architecture, self.ranks, gathers, at_once)

    def count_output_bytes(self, examples: int) -> int:
        """Return the bytes of the outputs of a network with one output for so many examples."""
        return examples * self.architecture.numbers * self.architecture.itemsize

    def list_present(self, run: Run) -> list[str]:
        """Return the names of the parameters that every rank has after a round of ``run``, which
        may have another method."""
        spec = find_method_spec(run.method.name)
        return spec.on_all_ranks(run, self.architecture, self.ranks)

    def list_lacking(self) -> list[str]:
        """Return the names of the parameters that owners send to ranks that score their subnets:
        what is not dealt out, and what no method keeps on every rank."""
        # Each rank has the values of its subnet.
        if self.spec.sums_outputs:
            return []
        present = self.list_present(self.run)
        groups = self.spec.groups(self.run, self.architecture)
        lacking = []
        for name, parameter in self.architecture.parameters.items():
            if name not in present and not parameter.pattern.dealt(groups):
                lacking.append(name)
        return lacking

    @property
    def has_known_sizes(self) -> bool:
        """True if images keep their size, and no rows travel to local data."""
        travels = self.is_local and self.plan.sharded
        return not (self.run.grows or travels)

    @property
    def knows_outputs(self) -> bool:
        """True if the bytes of outputs that subnets side by side add up are known."""
        one_output = len(self.architecture.table.output_names) == 1
        return (
            one_output
            and not self.is_graph
            and self.form != "likelihood"
            and (self.plan.sums is not None or self.plan.summed is not None)
            and "validation" not in self.data.splits
            and self.data.network is None
        )

    def _count_work(self) -> tuple[Work, Work]:
        """Return the work of all rounds, and that of an evaluation."""
        ranks = self.ranks
        sent: Number = 0
        flops: Number = 0
        flush: Number = 0
        before = 0
        for cost, rounds in phase_costs(self.run, self.architecture, ranks, len(self.data.train)):
            sent += cost.sent_bytes(before, rounds)
            step = max(part.flops.products + part.flops.normalisation for part in cost.parts)
            flops += rounds * cost.local_steps * step
            flush = max(flush, cost.flush_bytes)
            before += rounds
        # Ranks send about alike to each other, but what rank 0 alone evaluates fills its line.
        evaluated = self.plan.sent
        on_line: Number = Fraction(evaluated + flush, ranks)
        if self.plan.on_one:
            on_line = evaluated + Fraction(flush, ranks)
        evaluation = Work(sent=evaluated + flush, on_line=on_line, flops=self.count_flops())
        return Work(sent=sent, on_line=Fraction(sent, ranks), flops=flops), evaluation
