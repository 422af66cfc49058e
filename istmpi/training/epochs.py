"""``train.epochs``: the length of a run in passes over the data, as rounds."""

from fractions import Fraction
from math import ceil

from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.data.batches import place
from istmpi.data.dataset import Dataset
from istmpi.methods import METHODS


def in_rounds(run: Run, data: Dataset, ranks: int, communicator: Communicator | None = None) -> Run:
    """Return the run with as many rounds as its epochs take, if it has any; collective with a communicator.

    That is ceil(epochs * examples of the rank that has most / (local steps * batch)), with fedavg ceil(epochs /
    method.epochs).
    """
    epochs, settings, method = run.train.epochs, run.data, run.method
    if epochs is None:
        return run
    by_label = settings.placement == "by-label"  # else rank 0 has most
    labels, parts = data.train.labels() if by_label else data.train, range(ranks if by_label else 1)
    examples = max(
        len(place(settings.placement, labels, part, ranks, run.train.seed, settings.alpha)) for part in parts
    )
    if settings.placement == "local" and communicator:
        examples = max(communicator.allgather(examples))
    passes = Fraction(method.local_steps * run.train.batch, examples)
    if method.name in METHODS and METHODS[method.name].in_passes:
        passes = Fraction(method.epochs)
    return run.override({"train.rounds": ceil(Fraction(str(epochs)) / passes)})
