"""Sets the rounds between a run's evaluations."""

from istmpi.checkpoint.parts import Copy
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.data.dataset import Dataset
from istmpi.evaluation.planning import choose_interval
from istmpi.network.architecture import Architecture


def set_interval(
    run: Run,
    architecture: Architecture,
    data: Dataset,
    communicator: Communicator,
    start: Copy | None,
) -> Run:
    """Return the run with the rounds between its evaluations (`choose_interval`). Collective.

    A run that resumes from the checkpoint ``start`` keeps them, also on other ranks.
    """
    every = run.evaluate.every
    if start and not every:
        with communicator.agreed(), open_checkpoint(start) as checkpoint:
            every = checkpoint.header.run.evaluate.every
    if not every:
        every = choose_interval(run, architecture, data, communicator.size)
        # Ranks with their own data may count other bytes.
        if run.data.placement == "local":
            every = communicator.broadcast_from_root(every)
    return run.override({"evaluate.every": every})
