"""Sets the rounds between a run's evaluations."""

from istmpi.checkpoint.parts import Copy
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.data.dataset import Dataset
from istmpi.evaluation.planning import Evaluations
from istmpi.network.architecture import Architecture


def recall_interval(run: Run, start: Copy | None) -> int:
    """Return the rounds between evaluations in a run's settings or, also on other ranks, in the
    checkpoint ``start`` from which it resumes; 0 if neither knows. Raises DataError if the
    checkpoint is damaged."""
    if run.evaluate.every or not start:
        return run.evaluate.every
    with open_checkpoint(start) as checkpoint:
        return checkpoint.header.run.evaluate.every


def set_interval(
    run: Run,
    architecture: Architecture,
    data: Dataset,
    communicator: Communicator,
    every: int,
) -> Run:
    """Return the run with the rounds between its evaluations: those that `recall_interval` has
    found, or those of `Evaluations.every`. Collective."""
    if not every:
        every = Evaluations.in_training(run, architecture, data, communicator.size).every
        # Ranks with their own data may count other bytes.
        if run.data.placement == "local":
            every = communicator.broadcast_from_root(every)
    return run.override({"evaluate.every": every})
