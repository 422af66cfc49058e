"""Computes the moments that standardise targets: the same on all ranks, whoever has the examples."""

from __future__ import annotations

from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.data.dataset import Dataset
from istmpi.data.moments import Moments

ROWS = 2**16
"""Rows in memory at a time."""


def standardised(run: Run, data: Dataset, communicator: Communicator) -> Dataset:
    """Return data with targets of mean 0 and deviation 1 over the training examples, if a run wants that. Collective.

    Examples of all ranks count where each rank has its own.
    """
    if not data.scoring.predicts_numbers or not run.data.standardise:
        return data
    labels, moments = data.train.labels(), Moments(data.outputs)
    for start in range(0, len(labels), ROWS):
        moments.add(labels[start : start + ROWS])
    if run.data.placement == "local":
        parts, moments = communicator.allgather(moments.parts), Moments(data.outputs)
        for count, mean, squares in parts:
            moments.merge(count, mean, squares)
    return data.standardised(moments.normalisation(data.outputs)[:2])
