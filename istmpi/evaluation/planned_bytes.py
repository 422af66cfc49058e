"""Counts the bytes of a run's evaluations, and of the temperature at its saves, before the run.
Without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from istmpi.cost.one_round import flushed_bytes
from istmpi.data.graph.split import GraphSplit
from istmpi.evaluation.further import has_area
from istmpi.evaluation.planning import Evaluations
from istmpi.evaluation.sample import may_keep_logits
from istmpi.evaluation.together import keeps_logits, scores_together


@dataclass(frozen=True)
class Planned:
    """The evaluations of a run."""

    every: int
    """Rounds between evaluations."""
    count: int
    sent: int | None
    """The most bytes that all ranks send in them; None if these are not known before the run."""
    least: int | None
    """The fewest bytes, which differ from the most if scores decide the form of the network."""


def plan_evaluations(evaluations: Evaluations) -> Planned:
    """Return the bytes that a run's evaluations send for this run's seed.

    The bytes are not known for other sizes of images, for local data that a sharded layer's rows
    travel to, and where `istmpi.cost.one_round.flushed_bytes` does not know them; for subnets side
    by side neither with several outputs, sharded layers, graphs, a validation split, nor with
    blocks that are redealt.
    """
    count = len(evaluations.rounds)
    unknown = Planned(every=evaluations.every, count=count, sent=None, least=None)
    if not evaluations.has_known_sizes:
        return unknown
    flushed = _count_flushed(evaluations)
    if flushed is None:
        return unknown
    plan = evaluations.plan
    details = sum(_split_details(evaluations))
    if evaluations.form == "merged":
        sent = flushed + count * plan.sent + details
        return replace(unknown, sent=sent, least=sent)
    if not evaluations.knows_outputs or evaluations.moments is None:
        return unknown
    blocks = count * _count_side_by_side(evaluations)
    if evaluations.data.labels_on is not None:
        blocks += details
    if keeps_logits(evaluations):
        blocks += _count_added_up(evaluations, evaluations.sampled)
    if evaluations.form != "best":
        return replace(unknown, sent=flushed + blocks, least=flushed + blocks)
    if scores_together(evaluations):
        both = flushed + count * _count_both(evaluations)
        return _add_details(replace(unknown, sent=both, least=both), evaluations)
    assert plan.sums is not None, "there are no sharded layers"
    # The full network stays loaded if it wins.
    merged = count * plan.sums + details
    both = flushed + count * _count_choice(evaluations)
    return replace(unknown, sent=both + max(merged, blocks), least=both + min(merged, blocks))


def _count_flushed(evaluations: Evaluations) -> int | None:
    # Outputs that are added up need no weights of other ranks.
    if evaluations.form == "sum":
        return 0
    return flushed_bytes(
        evaluations.run, evaluations.architecture, evaluations.ranks, evaluations.rounds
    )


def _add_details(planned: Planned, evaluations: Evaluations) -> Planned:
    """Return evaluations whose last one has details, in which both forms are scored at once."""
    assert planned.sent is not None, "bytes are known"
    numbers, area = _split_details(evaluations)
    least = planned.sent + numbers
    # Rank 0 alone has the full network's outputs; all ranks have those of subnets.
    return replace(planned, sent=least + area, least=least)


def _count_side_by_side(evaluations: Evaluations) -> int:
    """Return the bytes that all ranks send to score subnets side by side."""
    ranks = evaluations.ranks
    passed = _count_passed(evaluations, evaluations.scored) + _count_moments(evaluations)
    if evaluations.data.labels_on is None:
        return passed
    # One rank has the labels, and tells the others its sums.
    return passed + ranks * (ranks - 1) * 8 * evaluations.count_numbers()


def _count_choice(evaluations: Evaluations) -> int:
    """Return the bytes to score the full network and the subnets side by side on the sample."""
    # Rank 0 tells the others both scores.
    scores = (evaluations.ranks - 1) * 2 * 8
    passed = _count_passed(evaluations, evaluations.sampled) + _count_moments(evaluations)
    return passed + evaluations.plan.sent + scores


def _count_both(evaluations: Evaluations) -> int:
    """Return the bytes to score both forms on the sample and on the scored examples at once."""
    plan = evaluations.plan
    # Rank 0 tells the others both scores, or its sums of both and the subnets' score.
    sums = (evaluations.ranks - 1) * 2 * 8
    if not plan.summed:
        assert plan.sums is not None, "rank 0 adds up alone"
        sums = plan.sums + (evaluations.ranks - 1) * 8
    examples = evaluations.sampled + evaluations.scored
    return _count_passed(evaluations, examples) + _count_moments(evaluations) + plan.sent + sums


def _count_moments(evaluations: Evaluations) -> int:
    """Return the bytes of subnets' moments, which all ranks add up with the outputs of a pass."""
    assert evaluations.moments is not None, "deals are known"
    return 2 * (evaluations.ranks - 1) * evaluations.moments * evaluations.architecture.itemsize


def _count_passed(evaluations: Evaluations, examples: int) -> int:
    """Return the bytes that all ranks send to load subnets side by side, and to add up their
    outputs for so many examples."""
    others = evaluations.ranks - 1
    sent = _count_added_up(evaluations, examples)
    architecture = evaluations.architecture
    for name in evaluations.list_lacking():
        parameter = architecture.parameters[name]
        sent += others * parameter.size(architecture.lengths) * parameter.itemsize
    return sent


def _count_added_up(evaluations: Evaluations, examples: int) -> int:
    """Return the bytes that all ranks send to add up outputs for so many examples."""
    # Ranks add up round a ring, or send as many bytes straight.
    return 2 * (evaluations.ranks - 1) * evaluations.count_output_bytes(examples)


def count_calibration_bytes(evaluations: Evaluations) -> int | None:
    """Return the bytes that a save after an evaluation sends for a classifier's temperature. None
    if they are not known before the run."""
    form = evaluations.form
    data = evaluations.data
    if evaluations.ranks == 1 or not data.scoring.one_class:
        return 0
    # Only one rank has labels, and adds up slopes with the others.
    if data.labels_on is not None:
        return None
    if form in ("merged", "best") and not evaluations.plan.leaves_outputs:
        return None
    if form == "merged":
        return 0
    if not evaluations.knows_outputs:
        return None
    if keeps_logits(evaluations):
        return 0
    if form != "best":
        return _count_passed(evaluations, evaluations.sampled)
    # The pass that chose the form has left its logits.
    return 0 if may_keep_logits(evaluations.sampled, data.outputs) else None


def _split_details(evaluations: Evaluations) -> tuple[int, int]:
    """Return the bytes that ranks send for the details of a run's last scores: those of sums, and
    of an area under a curve."""
    if evaluations.plan.sharded:
        return 0, 0
    ranks = evaluations.ranks
    data = evaluations.data
    numbers = evaluations.count_further(details=True) - evaluations.count_further(details=False)
    # Rank 0 alone sends its sums, or each rank its own.
    if not evaluations.plan.on_one:
        numbers *= ranks
    area = 0
    if has_area(data.scoring, data):
        rows = evaluations.scored
        if isinstance(data.test, GraphSplit):
            rows = len(data.test.graph)
        # All ranks' numbers of rows come first.
        area = ranks * ranks + 2 * rows
    return (ranks - 1) * 8 * numbers, (ranks - 1) * 8 * area
