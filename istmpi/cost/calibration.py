"""Counts the examples to calibrate the full network on, without torch."""

from collections.abc import Collection, Iterable
from fractions import Fraction
from math import prod

from istmpi.config import Run
from istmpi.cost.counts import FORWARD_NORMALISATION_FLOPS
from istmpi.cost.run_cost import cost
from istmpi.engine.lengths import Number
from istmpi.network.architecture import Architecture

SAMPLED = 1024
"""The most training examples to calibrate on, unless evaluate.calibration_examples is set."""
SHARE = Fraction(1, 10)
"""The largest share of a run's FLOPs that its evaluations may take."""
LEAST_SAMPLED = 64
"""The fewest examples to calibrate on; moments of fewer would be inexact."""
FREE = 2**28  # FLOPs: a fraction of a second


def rounds_flops(
    run: Run, architecture: Architecture, ranks: int, trained: int | None = None
) -> Number:
    """The busiest rank's FLOPs of products and norms between evaluations. ``trained``: number of
    training examples."""
    phase_cost = cost(run, architecture, ranks, run.phases()[0][0], examples=trained)
    step = max(part.flops.products + part.flops.normalisation for part in phase_cost.parts)
    return run.evaluate.rounds_between(run.train.rounds) * phase_cost.local_steps * step


def forward_flops(architecture: Architecture, ranks: int, sharded: Collection[str] = ()) -> Number:
    """Return a rank's forward FLOPs per example. Ranks divide the sharded products, or all if none
    is sharded."""
    lengths = architecture.lengths
    normalised = FORWARD_NORMALISATION_FLOPS * sum(
        prod(axes.shape(lengths)) for axes in architecture.normalised
    )
    shared = whole = Fraction(0)
    for operator in architecture.operators:
        flops = operator.flops(lengths)[0]
        if not sharded or operator.parameter in sharded:
            shared += flops
        else:
            whole += flops
    return (shared + normalised) / ranks + whole


def count_values(architecture: Architecture, passes: Iterable[int]) -> float:
    """Return the number of values that layers with weights return in ``passes`` of so many
    examples."""
    lengths = architecture.lengths
    values = 0.0
    for examples in passes:
        for operator in architecture.operators:
            values += float(operator.outputs(lengths, examples))
    return values


def calibration_examples(
    run: Run, architecture: Architecture, ranks: int, trained: int | None = None, scored: int = 0
) -> int:
    """Return the number of examples to calibrate on: the run's setting, or as many as FLOPs allow,
    up to `SAMPLED`.

    ``trained``, ``scored``: the numbers of training and scored examples.
    """
    if run.evaluate.calibration_examples:
        return run.evaluate.calibration_examples
    if not architecture.batch_norms:
        return SAMPLED
    # decision 37: from FLOPs and never from a clock, so that a run repeats bit for bit.
    example_flops = forward_flops(architecture, ranks)
    # Whatever the rounds take: to count their FLOPs is most of the work of planning a small run.
    if SAMPLED * example_flops <= FREE:
        return SAMPLED
    # A share of the sum of both: evaluations may take SHARE / (1 - SHARE) of the rounds' FLOPs.
    allowed = SHARE / (1 - SHARE) * rounds_flops(run, architecture, ranks, trained)
    budget: Number = max(allowed - scored * example_flops, Fraction(FREE))
    affordable = int(budget // max(example_flops, Fraction(1)))
    return min(max(affordable, run.train.batch * ranks, LEAST_SAMPLED), SAMPLED)
