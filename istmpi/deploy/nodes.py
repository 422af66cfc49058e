"""A graph in, a line for each of its nodes out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from istmpi.data.graph.split import GraphSplit
from istmpi.data.hdf5 import open_prepared
from istmpi.data.writer import SUFFIXES
from istmpi.deploy.prediction import BATCH, Predicted, lines
from istmpi.errors import DataError
from istmpi.tasks import TASKS

if TYPE_CHECKING:
    from istmpi.deploy.network import CalibratedNetwork


def node_lines(
    network: CalibratedNetwork,
    source: str,
    features: int,
    classes: Sequence[str] | None,
    outputs: int,
    all_outputs: bool,
    form: str,
) -> Iterator[str]:
    """Of every node of a prepared graph its class and the probability of that; of several labels that of each."""
    logits = network.of_graph(_graph(source, features))
    if classes is None:
        logits = 1 / (1 + np.exp(-logits))
    parts = (range(start, min(start + BATCH, len(logits))) for start in range(0, len(logits), BATCH))
    predictions = (Predicted(part, logits[part.start : part.stop]) for part in parts)
    return lines(predictions, classes, outputs, all_outputs, form, "node")


def _graph(source: str, features: int) -> GraphSplit:
    """The whole of a prepared graph; DataError for anything else, and for other features."""
    path = Path(source)
    if not path.is_file() or path.suffix not in SUFFIXES:
        raise DataError(f"{path} is no prepared graph. Make one: istmpi prepare graph SRC GRAPH.h5")
    data = open_prepared(path)
    if not TASKS[data.task].of_nodes:
        raise DataError(f"{path} is for {data.task}, but this network takes a graph. Give one.")
    if data.features != features:
        raise DataError(f"{path} has {data.features:,} features a node; the network takes {features:,}. Give the same.")
    return data.test
