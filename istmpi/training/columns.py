"""Gives each rank its columns of a table, and tells all ranks about the columns of the others."""

from dataclasses import replace

from istmpi.comm import Communicator
from istmpi.data.columns import EVEN, Columns, keep_labels, place_columns, require_table, take_part
from istmpi.data.dataset import Dataset
from istmpi.data.settings import Data


def divide_columns(data: Dataset, settings: Data, communicator: Communicator) -> Dataset:
    """Return the table of all ranks' columns, as this rank has it. Collective.

    ``data``: the whole table, or with ``own`` this rank's columns. Raises ConfigError on every rank
    if the data are no table, or have too few columns.
    """
    rank = communicator.rank
    with communicator.agreed():
        require_table(data)
        if settings.columns == EVEN:
            data = take_part(data, rank, communicator.size)
    # decision 82: what one table gives each rank is as a file of its own.
    data = place_columns(data, communicator.allgather(Columns.from_data(data)), rank)
    labels_on = settings.labels_on
    # `istmpi.methods.limits` refuses other ranks.
    if labels_on is not None and labels_on < communicator.size:
        target_offset = communicator.allgather(data.target_offset)[labels_on]
        data = replace(keep_labels(data, labels_on, rank), target_offset=target_offset)
    return data
