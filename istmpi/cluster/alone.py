"""Measures evaluations by rank 0 alone: the other ranks wait, and leave it shared cores."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from istmpi.cluster.figures import fit
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.cost.calibration import SAMPLED, count_values
from istmpi.training.loop import Training

WIDTHS = ([16], [128, 128], [512, 512], [1024, 1024])
"""The hidden widths of the networks that are evaluated."""
REPEATS = 7


@dataclass(frozen=True)
class Alone:
    """The seconds of an evaluation by rank 0: those that do not depend on sizes, of each value that
    a layer returns, and of each FLOP."""

    fixed: float = 0.0
    per_value: float = 0.0
    per_flop: float = 0.0


def measure_alone(tiny: Run, communicator: Communicator) -> Alone:
    """Let rank 0 evaluate networks of several widths; return its figures on every rank.
    Collective.

    ``tiny``: a run of a network with hidden layers.
    """
    figures = Alone()
    with communicator.among([0]) as alone:
        if alone:
            figures = _fit_evaluations(tiny, alone)
    return communicator.broadcast_from_root(figures)


def _fit_evaluations(tiny: Run, alone: Communicator) -> Alone:
    values: list[float] = []
    flops: list[float] = []
    seconds: list[float] = []
    for hidden in WIDTHS:
        changes = {"model.hidden": hidden, "evaluate.calibration_examples": SAMPLED}
        training = Training(tiny.override(changes), alone)
        evaluations = training.evaluator.planned
        values.append(count_values(training.architecture, evaluations.list_passes()))
        flops.append(float(evaluations.count_flops()))
        seconds.append(_time_evaluation(training))
    (fixed, per_value, per_flop), _ = fit([[1.0] * len(flops), values, flops], seconds)
    return Alone(fixed, per_value, per_flop)


def _time_evaluation(training: Training) -> float:
    """Return the median over `REPEATS`."""
    times = []
    for number in range(REPEATS):
        # A round fills the caches with other values.
        training.method.run(number)
        start = time.perf_counter()
        training.evaluate()
        times.append(time.perf_counter() - start)
    return float(np.median(times))
