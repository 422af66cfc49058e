"""From measured rounds and curves of accuracy to time, bytes and samples to an accuracy: pure arithmetic.

A *round* is what `benchmarks/speeds.py` records, a *curve* a list of points with ``step`` and ``accuracy`` by step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from time_plan import TENTH

ALGORITHMS = {
    "ist": "ist",
    TENTH: TENTH,
    "local-sgd": "local-sgd",
    "pytorch-local-sgd": "local-sgd",
    "data-parallel": "data-parallel",
    "pytorch-ddp": "data-parallel",
}
"""What every contestant learns like: the peers have our initial values, batches and evaluation."""
IN_STEPS = ("compute", "wait")
"""Phases that grow with a round's local steps; waiting is for ranks that compute longer. The rest is once a round."""

Round = Mapping
Curve = Sequence[Mapping]


def step_seconds(rounds: Sequence[Round], local_steps: int, as_measured: bool) -> float:
    """Seconds of a local step in rounds of ``local_steps``, whatever the rounds measured had.

    ``as_measured``: a step of those rounds, as of a method that sends in every step. The others send once a round.
    """
    return _per_step(rounds, local_steps, as_measured, lambda one: (one["seconds"], _in_steps(one)))


def step_bytes(rounds: Sequence[Round], local_steps: int, as_measured: bool) -> float:
    """Bytes of all ranks in a local step: as interfaces count them where there are any, else as the program does."""
    return _per_step(
        rounds, local_steps, as_measured, lambda one: (one["bytes"] if one["wire"] is None else one["wire"], 0.0)
    )


def _per_step(rounds, local_steps: int, as_measured: bool, parts) -> float:
    totals, inside = zip(*map(parts, rounds))
    measured = sum(one["steps"] for one in rounds)
    if as_measured:
        return sum(totals) / measured
    once = (sum(totals) - sum(inside)) / len(rounds)
    return sum(inside) / measured + once / local_steps


def _in_steps(one: Round) -> float:
    return sum(one["phases"].get(name, 0.0) for name in IN_STEPS)


def split(rounds: Sequence[Round], local_steps: int, as_measured: bool) -> dict[str, float]:
    """Where a step's seconds go, by phase; what no phase accounts for is `other`: mostly waiting for the slowest."""
    measured = sum(one["steps"] for one in rounds)
    spent = {}
    for name in rounds[0]["phases"]:
        total = sum(one["phases"][name] for one in rounds)
        spread = as_measured or name in IN_STEPS
        spent[name] = total / measured if spread else total / len(rounds) / local_steps
    spent["other"] = step_seconds(rounds, local_steps, as_measured) - sum(spent.values())
    return spent


def ratios(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float]:
    """How many times as long the first takes as the second: median, least and most over the turns."""
    found = [one / other for one, other in zip(slow, fast, strict=True)]
    return median(found), min(found), max(found)


def mean_curve(curves: Sequence[Curve]) -> list[tuple[int, float]]:
    """Steps, and the mean accuracy over curves (seeds), where all of them were evaluated; in ascending order."""
    found = [{point["step"]: point["accuracy"] for point in curve} for curve in curves]
    steps = sorted(set.intersection(*map(set, found)))
    return [(step, mean(one[step] for one in found)) for step in steps]


def averaged(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Each accuracy replaced by its mean with both neighbours', itself counted twice; the ends, with one, stay."""
    inner = [
        (here[0], (before[1] + 2 * here[1] + after[1]) / 4) for before, here, after in zip(curve, curve[1:], curve[2:])
    ]
    return [*curve[:1], *inner, *curve[-1:]] if len(curve) > 1 else list(curve)


def steps_to(curve: Sequence[tuple[int, float]], accuracy: float) -> float | None:
    """The steps at which a curve first reaches an accuracy, on the line between two points; None where it does not."""
    before: tuple[int, float] | None = None
    for step, reached in curve:
        if reached >= accuracy:
            if before is None:
                return float(step)
            return before[0] + (accuracy - before[1]) / (reached - before[1]) * (step - before[0])
        before = step, reached
    return None


def highest_common(curves: Sequence[Sequence[tuple[int, float]]], grain: float = 0.005) -> float:
    """The highest accuracy that every curve reaches, rounded down to a multiple of ``grain``."""
    reached = min(max(accuracy for _, accuracy in curve) for curve in curves)
    return round(math.floor(reached / grain + 1e-9) * grain, 6)


@dataclass(frozen=True)
class Final:
    """The accuracy at a curve's end over seeds: each the mean of its last three evaluations."""

    mean: float
    least: float
    most: float
    seeds: int
    steps: int
    """Of the shortest curve."""


def final(curves: Sequence[Curve]) -> Final:
    """Of one method's curves; the first point is before any step."""
    ends = [mean(point["accuracy"] for point in curve[1:][-3:]) for curve in curves]
    steps = min(curve[-1]["step"] for curve in curves)
    return Final(mean(ends), min(ends), max(ends), len(ends), steps)


def interpolated(points: Curve, key: str, step: float) -> float | None:
    """A quantity of a run at a step, on the line between its evaluations and its start; None beyond its end."""
    before = {"step": 0, key: 0.0}
    for point in points:
        if point["step"] >= step:
            share = (step - before["step"]) / (point["step"] - before["step"])
            return before[key] + share * (point[key] - before[key])
        before = point
    return None
