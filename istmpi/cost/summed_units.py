"""Finds the units of a network's last hidden layer, if an evaluation can add up what they
contribute to the outputs. Without torch."""

from __future__ import annotations

from collections.abc import Mapping

from istmpi.cost.evaluation_plan import EvaluationPlan, SummedUnits
from istmpi.network.architecture import Architecture


def prefer_summed_units(
    alone: EvaluationPlan,
    architecture: Architecture,
    ranks: int,
    sizes: Mapping[str, int],
    missing_bytes: Mapping[str, int],
    examples: int,
) -> EvaluationPlan:
    """Return the plan of an evaluation in which ranks add up what their units contribute to the
    outputs, if the busiest line then has fewer bytes; otherwise ``alone``, the plan of an
    evaluation by rank 0.

    ``examples``: those that ranks may pass at once, or 0. ``sizes``: bytes of each parameter;
    ``missing_bytes``: of the weights that some ranks lack.
    """
    units = _find_units(architecture)
    # A rank needs a unit.
    if not examples or units is None or architecture.lengths[units.group] < ranks:
        return alone
    sent = _count_sent(architecture, units, ranks, examples, missing_bytes)
    # Each rank sends and receives a P-th of all bytes of a sum, or rank 0 receives them all.
    if sent >= ranks * alone.sent:
        return alone
    rows = frozenset(architecture.leaves[units.hidden])
    gathered = sum(nbytes for name, nbytes in sizes.items() if name not in rows)
    return EvaluationPlan(
        sharded=rows, gathered_bytes=gathered, sent=sent, summed=units, at_once=examples
    )


def _find_units(architecture: Architecture) -> SummedUnits | None:
    """Return the units that an evaluation may sum over; None if there are none.

    Only the stages of a chain are known to pass nothing by: a multilayer perceptron has them.
    """
    if len(architecture.stages) < 2:
        return None
    *_, group, last = architecture.stages
    is_normalised = group in architecture.batch_norms
    # A layer normalisation mixes the units of its layer.
    for pattern in architecture.normalised:
        if not is_normalised and group in pattern.axes[0].names:
            return None
    return SummedUnits(
        group=group,
        hidden=_find_leaf(architecture, group),
        outputs=_find_leaf(architecture, last),
        is_normalised=is_normalised,
    )


def count_summed(architecture: Architecture, units: SummedUnits, examples: int) -> int:
    """Return how many numbers ranks add up in a pass of so many examples: sums for the outputs,
    mean and variance of each unit."""
    leaf, *_ = architecture.leaves[units.outputs]
    outputs, _ = architecture.parameters[leaf].pattern.shape(architecture.lengths)
    numbers = examples * outputs
    if units.is_normalised:
        numbers += 2 * architecture.lengths[units.group]
    return numbers


def _count_sent(
    architecture: Architecture,
    units: SummedUnits,
    ranks: int,
    examples: int,
    missing_bytes: Mapping[str, int],
) -> int:
    """Return the bytes that all ranks send in an evaluation that sums over ``units`` in a pass of
    so many examples. ``missing_bytes``: of each parameter that some ranks lack."""
    rows = architecture.leaves[units.hidden]
    gathered = sum(nbytes for name, nbytes in missing_bytes.items() if name not in rows)
    # Ranks add up round a ring, or send as many bytes straight.
    numbers = count_summed(architecture, units, examples)
    return (ranks - 1) * (gathered + 2 * numbers * architecture.itemsize)


def _find_leaf(architecture: Architecture, stage: str) -> str:
    paths = [path for path in architecture.leaves if path.startswith(f"{stage}.")]
    (path,) = paths
    return path
