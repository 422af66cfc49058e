"""Converts ``train.epochs``, the length of a run in passes over the data, to rounds."""

from fractions import Fraction
from math import ceil

from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.config.methods import METHODS
from istmpi.data.batches import place
from istmpi.data.dataset import Dataset


def in_rounds(run: Run, data: Dataset, ranks: int, communicator: Communicator | None = None) -> Run:
    """Return the run with ``train.rounds`` computed from ``train.epochs``; the same run if no
    epochs are set.

    Rounds are ceil(epochs * examples / (local steps * batch)), with the largest number of examples
    of a rank; for fedavg they are ceil(epochs / method.epochs). Collective with a communicator.
    """
    epochs, method = run.train.epochs, run.method
    if epochs is None:
        return run
    examples = max(examples_of_ranks(run, data, ranks))
    if run.data.placement == "local" and communicator:
        examples = max(communicator.allgather(examples))
    passes = Fraction(method.local_steps * run.train.batch, examples)
    if method.name in METHODS and METHODS[method.name].in_passes:
        passes = Fraction(method.epochs)
    return run.override({"train.rounds": ceil(Fraction(str(epochs)) / passes)})


def examples_of_ranks(run: Run, data: Dataset, ranks: int) -> set[int]:
    """Return the numbers of training examples that ranks have, as far as ``data`` tell."""
    count, settings = len(data.train), run.data
    if settings.placement == "by-label":
        labels, seed = data.train.labels(), run.train.seed
        return {
            len(place("by-label", labels, part, ranks, seed, settings.alpha))
            for part in range(ranks)
        }
    return {count // ranks, -(-count // ranks)} if settings.placement == "sharded" else {count}
