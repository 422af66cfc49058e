"""Standardises the numbers that a run predicts, by the training examples of all ranks."""

from istmpi.comm import Communicator
from istmpi.data.dataset import Dataset
from istmpi.data.moments import Moments
from istmpi.data.settings import Data

ROWS = 2**16
"""The number of examples whose targets are read at a time."""


def standardise(settings: Data, data: Dataset, communicator: Communicator) -> Dataset:
    """Return the data, with standardised targets if the settings ask for them. Collective.

    Mean and deviation are those of all ranks' training examples.
    """
    if not data.scoring.standardises or not settings.standardise:
        return data
    labels = data.train.labels()
    moments = Moments(data.outputs)
    for start in range(0, len(labels), ROWS):
        moments.add(labels[start : start + ROWS])
    if settings.placement == "local":
        parts_by_rank = communicator.allgather(moments.parts)
        moments = Moments(data.outputs)
        for count, mean, squares in parts_by_rank:
            moments.merge(count, mean, squares)
    targets = moments.normalisation(data.outputs)[:2]
    if data.labels_on is not None:
        targets = communicator.allgather(targets)[data.labels_on]
    return data.with_standard_targets(targets)
