"""The bytes between every two ranks in two given layouts, to the byte: the naive sum for plans and counters to meet."""

from collections.abc import Mapping, Sequence

import numpy as np

from istmpi.axes import Parameter
from istmpi.layout import Layout


def pair_bytes(parameters: Mapping[str, Parameter], source: Layout, target: Layout) -> np.ndarray:
    """Bytes that every rank has for every other when all parameters move: ``[from, to]`` int64, exact.

    The diagonal is what stays on its rank and never reaches MPI.
    """
    total = np.zeros((source.ranks, target.ranks), dtype=np.int64)
    for parameter in parameters.values():
        elements = np.ones_like(total)
        for place, axis in enumerate(parameter.pattern.axes):
            length = axis.length(source.lengths)
            here, there = (
                np.stack([_marked(layout.positions(axis, place, rank), length) for rank in range(layout.ranks)])
                for layout in (source, target)
            )
            elements *= (here @ there.T).astype(np.int64)
        total += elements * parameter.itemsize
    return total


def _marked(positions: Sequence[int], length: int) -> np.ndarray:
    """1 at the given positions of an axis and 0 elsewhere: ``[length]`` float64, whose products are fast and exact."""
    marks = np.zeros(length)
    marks[np.asarray(positions, dtype=np.int64)] = 1
    return marks
