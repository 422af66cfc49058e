"""Measures an evaluation by rank 0 alone: the other ranks wait, and leave it shared cores."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.errors import IstmpiError
from istmpi.evaluation.planning import count_evaluation_flops
from istmpi.training.loop import Training

REPEATS = 3


@dataclass(frozen=True)
class Evaluated:
    """An evaluation by a single rank; zeros if it was not measured."""

    seconds: float = 0.0
    flops: float = 0.0

    def find_flop_seconds(self, larger: Evaluated) -> float:
        """Return the seconds of a FLOP, by which a ``larger`` evaluation takes longer; 0 if there
        is none."""
        if larger.flops <= self.flops:
            return 0.0
        return max(larger.seconds - self.seconds, 0.0) / (larger.flops - self.flops)


def time_alone(training: Training, communicator: Communicator) -> Evaluated:
    """Let rank 0 train the run of a training, and evaluate it after each round; return the same on
    every rank. Collective.

    It is not measured for a run that rank 0 does not evaluate alone: its network may exceed a
    rank's memory.
    """
    evaluated = Evaluated()
    if not training.evaluator.plan.on_one:
        return evaluated
    with communicator.among([0]) as alone:
        if alone:
            # The run may not train on a single rank.
            with suppress(IstmpiError):
                evaluated = _time_evaluations(training.run, alone)
    return communicator.broadcast_from_root(evaluated)


def _time_evaluations(run: Run, alone: Communicator) -> Evaluated:
    """Return the median over `REPEATS`."""
    training = Training(run, alone)
    times = []
    for number in range(REPEATS):
        # A round fills the caches with other values.
        training.method.run(number)
        start = time.perf_counter()
        training.evaluate()
        times.append(time.perf_counter() - start)
    flops = count_evaluation_flops(
        training.run, training.architecture, training.dataset, 1, training.evaluator.plan
    )
    return Evaluated(float(np.median(times)), float(flops))
