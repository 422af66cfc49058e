"""Counts exactly the bytes that ranks send each other to bring parameters from one layout to
another.

A layout (`istmpi.engine.layout`) says which elements each rank has.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from istmpi.comm import ring
from istmpi.comm.codec import Wire, value_bytes
from istmpi.engine.axes import Axis, Parameter, count_bytes
from istmpi.engine.layout import Layout, pieces_to_move
from istmpi.engine.packed_sizes import Largest, float4_bytes, top_k_bytes
from istmpi.engine.positions import Positions
from istmpi.engine.route import FRAGMENT, GATHER, MEAN, Leg
from istmpi.engine.wire import choose_form, choose_forms, count_scales

FEW_MARKS = 2**14
"""The most marks of an axis that are kept, in one call, for the next parameters: 128 kB."""


class _Marks:
    """The marks of layouts' axes: 1 where a rank has a position, otherwise 0. Small ones are kept,
    because parameters share axes."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, Axis, int], np.ndarray] = {}

    def find(self, layout: Layout, axis: Axis, place: int) -> np.ndarray:
        """Return the marks of an axis: ``[rank, position]`` float64.

        ``place``: the number of the axis in its tensor. They are floats, because NumPy multiplies
        matrices of integers slowly.
        """
        key = (id(layout), axis, place)
        marks = self._kept.get(key)
        if marks is None:
            length = axis.length(layout.lengths)
            ranks = range(layout.ranks)
            marks = np.stack([_mark(layout.positions(axis, place, rank), length) for rank in ranks])
            if marks.size <= FEW_MARKS:
                self._kept[key] = marks
        return marks


def pair_bytes(
    parameters: Mapping[str, Parameter],
    source: Layout,
    target: Layout,
    exclude: Layout | None = None,
    wire: str = "float32",
    shared: bool = True,
) -> np.ndarray:
    """The bytes from every rank to every rank, also to itself, if all parameters move: ``[from,
    to]`` int64.

    ``exclude``: a deal. Elements of dealt parameters that any rank holds in this deal do not move.
    ``shared``: False leaves out what all ranks have of parameters that are dealt out in part.
    """
    total = np.zeros((source.ranks, target.ranks), dtype=np.int64)
    # A group that only one of the layouts deals out divides the tensors, too.
    groups = {**source.units, **target.units}
    marks = _Marks()
    for name, _, parameter in pieces_to_move(parameters, (source, target, exclude), shared):
        moved = _common_elements(parameter, source, target, marks)
        # What ranks held in the deal before does not return to its owner: it hops from them.
        if exclude is not None and parameter.pattern.dealt(exclude.units):
            moved -= _excluded_elements(parameter, source, target, exclude, marks)
        form = choose_form(wire, name, parameter)
        scales = count_scales(form, parameter, source.lengths, groups, source.ranks)
        total += moved * value_bytes(form, parameter.itemsize) + (moved > 0) * scales
    return total


def _common_elements(
    parameter: Parameter, source: Layout, target: Layout, marks: _Marks
) -> np.ndarray:
    """Return the number of elements that two ranks both have: ``[from, to]`` int64."""
    elements = np.ones((source.ranks, target.ranks), dtype=np.int64)
    for place, axis in enumerate(parameter.pattern.axes):
        sent = marks.find(source, axis, place)
        received = marks.find(target, axis, place)
        # A rank's elements are a grid of its positions on each axis: the numbers of common
        # positions multiply.
        elements *= (sent @ received.T).astype(np.int64)
    return elements


def _excluded_elements(
    parameter: Parameter, source: Layout, target: Layout, exclude: Layout, marks: _Marks
) -> np.ndarray:
    """Return the number of `_common_elements` that any rank has in a third layout: ``[from, to]``
    int64."""
    # For each holder in the third layout: the elements that all three ranks have.
    by_holder = np.ones((exclude.ranks, source.ranks, target.ranks), dtype=np.int64)
    for place, axis in enumerate(parameter.pattern.axes):
        sent = marks.find(source, axis, place)
        received = marks.find(target, axis, place)
        for holder, held in enumerate(marks.find(exclude, axis, place)):
            by_holder[holder] *= ((sent * held) @ received.T).astype(np.int64)
    # Each element has at most one holder in a deal, so no element counts twice.
    return by_holder.sum(axis=0)


def leg_bytes(leg: Leg, ranks: int, lengths: Mapping[str, int]) -> np.ndarray:
    """Return the bytes that each rank sends for a leg of a round: ``[rank]`` int64."""
    return leg.times * np.array(_bytes_once(leg, ranks, lengths), dtype=np.int64)


def _bytes_once(leg: Leg, ranks: int, lengths: Mapping[str, int]) -> Sequence[int] | np.ndarray:
    """Return the bytes that each rank sends if the leg is sent once."""
    elements = {name: parameter.size(lengths) for name, parameter in leg.parameters.items()}
    kind = leg.wire.kind if isinstance(leg.wire, Wire) else "float32"
    if isinstance(leg.wire, Largest):
        return [(ranks - 1) * top_k_bytes(leg.wire.top, [*elements.values()])] * ranks
    if leg.name == FRAGMENT:
        return ring.count_sent(sum(elements.values()), ranks, float4_bytes)
    if leg.name == GATHER:
        return [(ranks - 1) * count_bytes(leg.parameters, lengths)] * ranks
    if leg.name == MEAN:
        itemsize = next(iter(leg.parameters.values())).itemsize
        return ring.count_sent_bytes(elements, itemsize, ranks, choose_forms(kind, leg.parameters))
    if leg.source is None or leg.target is None:
        raise AssertionError(f"the leg {leg.name} has no layouts")
    pairs = pair_bytes(leg.parameters, leg.source, leg.target, leg.exclude, kind, leg.shared)
    return pairs.sum(axis=1) - pairs.diagonal()  # what stays on a rank is not sent


def _mark(positions: Positions, length: int) -> np.ndarray:
    marks = np.zeros(length)
    marks[np.asarray(positions, dtype=np.int64)] = 1
    return marks
