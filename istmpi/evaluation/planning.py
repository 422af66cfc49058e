"""Plans a run's evaluations from its settings, its network and its data: the form of the network
and where it lies, what each evaluation sends, and in which rounds there is one. Without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from istmpi.comm.objects import SLOT
from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.config.sections import Evaluate
from istmpi.cost.calibration import forward_flops, rounds_flops
from istmpi.cost.counts import Amount
from istmpi.cost.evaluation import (
    FLOPS_A_BYTE,
    EvaluationPlan,
    evaluation_memory,
    evaluation_plan,
)
from istmpi.cost.passing import pass_bytes, windows_together
from istmpi.cost.run_cost import phase_costs
from istmpi.data.dataset import Dataset
from istmpi.data.graph.split import GraphSplit
from istmpi.engine.lengths import Number
from istmpi.evaluation.further import count_further
from istmpi.evaluation.sample import count_sampled, count_scored, count_scored_in_training
from istmpi.network.architecture import Architecture
from istmpi.tasks import MultiLabel, OwnTask

SHARE = Fraction(15, 100)
"""The largest part of a run's bytes, and of its time on a link of `FLOPS_A_BYTE`, that evaluations
take by default. The last round is evaluated in any case."""
MOST = 10
"""The most evaluations of a run by default."""
MOST_KEPT = 2**18
"""The most logits that stay in the memory from an evaluation to a save: 2 MB."""
TOGETHER_BYTES = 2**17
"""The most bytes of outputs that subnets add up before it is known that they are needed: a line of
10 Mbit/s carries them in the time of a round trip of 0.1 s."""


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


def plan_evaluation(
    run: Run, architecture: Architecture, data: Dataset, ranks: int, trained_on: int
) -> EvaluationPlan:
    """Plan the evaluations of a network on ``ranks`` ranks; ``trained_on``: those of its
    training."""
    spec = find_method_spec(run.method.name)
    local = run.data.placement == "local"
    # A user's loop passes its own batches on every rank; columns and labels may be elsewhere.
    elsewhere = data.network is not None or data.columns or data.labels_on is not None
    plan = evaluation_plan(
        architecture,
        ranks,
        room=evaluation_memory(run, architecture, trained_on, local),
        passes=list_passes(run, architecture, data, ranks, trained_on),
        local=local,
        spread=issubclass(data.scoring, MultiLabel),
        on_one=not elsewhere,
        present=spec.on_all_ranks(run, architecture, ranks),
        numbers=count_numbers(run.evaluate, architecture, data),
    )
    if local or not issubclass(data.scoring, OwnTask):
        return plan
    # Ranks gather a user's sums with their names, and agree that all could read them: two objects,
    # which fit into a slot unless the names are long.
    named = 2 * SLOT * ranks * (ranks - 1)
    sums = None
    if plan.sums is not None:
        sums = plan.sums + named
    return replace(plan, sent=plan.sent + named, sums=sums)


def count_numbers(evaluate: Evaluate, architecture: Architecture, data: Dataset) -> int:
    """Return how many numbers ranks add up for a score."""
    task = data.scoring
    if issubclass(task, OwnTask):
        # The count of examples.
        return 1
    numbers = 2 + len(architecture.table.output_names) * task.numbers
    return numbers + count_further(task, data, evaluate, details=False)


def list_passes(
    run: Run, architecture: Architecture, data: Dataset, ranks: int, trained_on: int
) -> list[int]:
    """Return the number of examples of each pass of an evaluation, calibration first; nothing if
    each rank passes its own."""
    if run.data.placement == "local":
        return []
    calibrates = bool(architecture.batch_norms)
    if isinstance(data.train, GraphSplit):
        assert isinstance(data.test, GraphSplit)
        nodes = len(data.test.graph)
        return [nodes, nodes] if calibrates else [nodes]
    sampled = 0
    if calibrates:
        sampled = count_sampled(run, architecture, data, trained_on)
    scored = count_scored(run.evaluate, data, len(data.test))
    return [sampled, *map(len, divide(run.evaluate.batch, data, scored))]


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


def find_share(
    run: Run, architecture: Architecture, data: Dataset, ranks: int, plan: EvaluationPlan
) -> float:
    """Return evaluations' share of the FLOPs of a run's busiest rank."""
    evaluation = count_evaluation_flops(run, architecture, data, ranks, plan)
    return float(
        evaluation / (evaluation + rounds_flops(run, architecture, ranks, len(data.train)))
    )


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


def choose_interval(run: Run, architecture: Architecture, data: Dataset, ranks: int) -> int:
    """Return the rounds between evaluations: the run's setting, or as few as `SHARE` allows.

    Only bytes and FLOPs count, and no clock: a run repeats bit for bit. If the validation split
    decides when a run ends, or which network is kept, there are `MOST` evaluations. A user's loop
    evaluates by itself.
    """
    rounds = run.train.rounds
    fixed = run.evaluate.every or run.watches_validation or data.network is not None
    if fixed or ranks == 1:
        return run.evaluate.rounds_between(rounds)
    training, evaluation = _count_work(run, architecture, data, ranks)
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


def count_evaluating_groups(run: Run, ranks: int, plan: EvaluationPlan) -> int | None:
    """Return how many replica groups evaluate with all members, by `istmpi.evaluation.in_group`;
    None if that depends on scores, or on the size of images."""
    form = choose_form(run)
    if form == "best" or run.grows:
        return None
    if form != "merged" or plan.sharded or plan.by_units:
        return 0
    return 1 if plan.on_one else ranks


def count_pass_bytes(
    run: Run, architecture: Architecture, ranks: int, plan: EvaluationPlan
) -> Amount:
    """Return the least bytes of a pass of an evaluation on a rank."""
    gathers = bool(plan.sharded) and run.data.placement != "local"
    return pass_bytes(run, architecture, ranks, gathers)


def may_keep_logits(examples: int, classes: int) -> bool:
    """Return True if the logits of so many examples may stay in the memory until a save."""
    return examples * classes <= MOST_KEPT


def has_known_sizes(run: Run, plan: EvaluationPlan) -> bool:
    """Return True if images keep their size, and no rows travel to local data."""
    travels = run.data.placement == "local" and plan.sharded
    return not (run.grows or travels)


def knows_outputs(
    run: Run, architecture: Architecture, data: Dataset, plan: EvaluationPlan
) -> bool:
    """Return True if the bytes of outputs that subnets side by side add up are known."""
    one_output = len(architecture.table.output_names) == 1
    is_graph = isinstance(data.train, GraphSplit)
    weighted = choose_form(run) == "likelihood"
    return (
        one_output
        and not is_graph
        and not weighted
        and plan.sums is not None
        and "validation" not in data.splits
        and data.network is None
    )


def scores_together(
    run: Run, architecture: Architecture, data: Dataset, ranks: int, plan: EvaluationPlan
) -> bool:
    """Return True if an evaluation that chooses the form passes the scored examples through both
    forms at once, beside the sample (decision 56): then one message has the sums of both."""
    scored = count_scored(run.evaluate, data, len(data.test))
    return (
        choose_form(run) == "best"
        and plan.on_one
        and knows_outputs(run, architecture, data, plan)
        # Other tasks have sums of their own.
        and not issubclass(data.scoring, OwnTask | MultiLabel)
        and data.labels_on is None
        and not data.columns
        and run.train.group_size <= 1
        # Both batches are in the memory at once.
        and max(scored, count_sampled(run, architecture, data, ranks)) <= run.evaluate.batch
        and count_output_bytes(architecture, scored) <= TOGETHER_BYTES
    )


def count_output_bytes(architecture: Architecture, examples: int) -> int:
    """Return the bytes of the outputs of a network with one output for so many examples."""
    return examples * architecture.numbers * architecture.itemsize


def _count_work(
    run: Run, architecture: Architecture, data: Dataset, ranks: int
) -> tuple[Work, Work]:
    """Return the work of all rounds, and that of an evaluation."""
    plan = plan_evaluation(run, architecture, data, ranks, ranks)
    sent: Number = 0
    flops: Number = 0
    flush: Number = 0
    before = 0
    for cost, rounds in phase_costs(run, architecture, ranks, len(data.train)):
        sent += cost.sent_bytes(before, rounds)
        step = max(part.flops.products + part.flops.normalisation for part in cost.parts)
        flops += rounds * cost.local_steps * step
        flush = max(flush, cost.flush_bytes)
        before += rounds
    # Ranks send about alike to each other, but what rank 0 alone evaluates fills its line.
    on_line: Number = Fraction(plan.sent + flush, ranks)
    if plan.on_one:
        on_line = plan.sent + Fraction(flush, ranks)
    evaluation = Work(
        sent=plan.sent + flush,
        on_line=on_line,
        flops=count_evaluation_flops(run, architecture, data, ranks, plan),
    )
    return Work(sent=sent, on_line=Fraction(sent, ranks), flops=flops), evaluation


def count_evaluation_flops(
    run: Run, architecture: Architecture, data: Dataset, ranks: int, plan: EvaluationPlan
) -> Number:
    """Return the FLOPs of the busiest rank in an evaluation; 0 for a whole graph, whose FLOPs are
    not counted."""
    if isinstance(data.train, GraphSplit):
        return 0
    examples = count_scored_in_training(run, data)
    if architecture.batch_norms:
        examples += count_sampled(run, architecture, data, ranks)
    alone = plan.on_one or run.data.placement == "local"
    return examples * forward_flops(architecture, 1 if alone else ranks, plan.sharded)
