"""``train.epochs``: the length of a run in passes over the data, as rounds."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.data.dataset import Dataset
from istmpi.data.placement import place
from istmpi.methods import METHODS


def in_rounds(run: Run, data: Dataset, ranks: int, communicator: Communicator | None = None) -> Run:
    """Return the run with as many rounds as its epochs take, if it has any; collective with a communicator.

    That is ceil(epochs * examples of the rank that has most / (local steps * batch)), with fedavg ceil(epochs /
    method.epochs).
    """
    epochs, placement, examples = run.train.epochs, run.data.placement, len(data.train)
    if epochs is None:
        return run
    if placement == "local" and communicator:
        examples = max(communicator.allgather(examples))
    elif placement == "by-label":
        parts = (
            place(placement, data.train.labels(), rank, ranks, run.train.seed, run.data.alpha) for rank in range(ranks)
        )
        examples = max(map(len, parts))
    elif placement == "sharded":
        examples = -(-examples // ranks)
    spec = METHODS.get(run.method.name)
    of_a_round = Fraction(run.method.local_steps * run.train.batch, examples)
    if spec and spec.in_passes:
        of_a_round = Fraction(run.method.epochs)
    return run.override({"train.rounds": max(ceil(Fraction(str(epochs)) / of_a_round), 1)})
