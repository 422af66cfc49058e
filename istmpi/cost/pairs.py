"""Counts exactly the bytes that ranks send each other to bring parameters from one layout to
another.

A layout (`istmpi.engine.layout`) says which elements each rank has.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from istmpi.comm import ring
from istmpi.comm.codec import value_bytes
from istmpi.engine.axes import Axis, Parameter
from istmpi.engine.layout import Layout, pieces_to_move
from istmpi.engine.packed_sizes import Largest, top_k_bytes
from istmpi.engine.partition import Partition
from istmpi.engine.route import Leg
from istmpi.engine.wire import form_of, forms_of, scales_of


def pair_bytes(
    parameters: Mapping[str, Parameter],
    source: Layout,
    target: Layout,
    exclude: Partition | None = None,
    wire: str = "float32",
    shared: bool = True,
) -> np.ndarray:
    """The bytes from every rank to every rank, also to itself, if all parameters move: ``[from,
    to]`` int64.

    ``exclude``: a deal. Elements of dealt parameters that any rank holds in this deal do not move.
    ``shared``: False leaves out what all ranks have of parameters that are dealt out in part.
    """
    # decision 49: exact counts come from spans of blocks, and no index is listed.
    total = np.zeros((source.ranks, target.ranks), dtype=np.int64)
    for name, _, parameter in pieces_to_move(parameters, (source, target, exclude), shared):
        elements = np.ones_like(total)
        dealt = exclude is not None and parameter.pattern.dealt(exclude.units)
        held = np.ones((exclude.ranks if dealt else 0, *total.shape), dtype=np.int64)
        for place, axis in enumerate(parameter.pattern.axes):
            here, there = (_marks(layout, axis, place) for layout in (source, target))
            elements *= (here @ there.T).astype(np.int64)
            if dealt:
                for rank, marks in enumerate(_marks(exclude, axis, place)):
                    held[rank] *= ((here * marks) @ there.T).astype(np.int64)
        form, moved = form_of(wire, name, parameter), elements - held.sum(axis=0)
        scales = scales_of(
            form, parameter, source.lengths, source.units | target.units, source.ranks
        )
        total += moved * value_bytes(form, parameter.itemsize) + (moved > 0) * scales
    return total


def leg_bytes(leg: Leg, ranks: int, lengths: Mapping[str, int]) -> np.ndarray:
    elements = {name: parameter.size(lengths) for name, parameter in leg.parameters.items()}
    itemsize = next((parameter.itemsize for parameter in leg.parameters.values()), 0)
    if isinstance(leg.wire, Largest):
        return np.full(ranks, (ranks - 1) * top_k_bytes(leg.wire.top, [*elements.values()]))
    kind = leg.wire.kind if leg.wire else "float32"
    if leg.source is None:
        return np.array(ring.sent_bytes(elements, itemsize, ranks, forms_of(kind, leg.parameters)))
    pairs = pair_bytes(leg.parameters, leg.source, leg.target, leg.exclude, kind, leg.shared)
    return pairs.sum(axis=1) - pairs.diagonal()


def _marks(layout: Layout, axis: Axis, place: int) -> np.ndarray:
    length = axis.length(layout.lengths)
    return np.stack(
        [_marked(layout.positions(axis, place, rank), length) for rank in range(layout.ranks)]
    )


def _marked(positions: Sequence[int], length: int) -> np.ndarray:
    marks = np.zeros(length)
    marks[np.asarray(positions, dtype=np.int64)] = 1
    return marks
