"""Layouts: the positions of a parameter that each rank has.

Every layout is an outer product: a rank's part of a tensor is given by one set of positions per
axis. The elements that two ranks have in common are an outer product, too. Every message therefore
is ``tensor[np.ix_(...)]``.

`Owners` is the layout of the ranks' stores. The layout of a round is
`istmpi.engine.partition.Partition`, or in federated averaging `Replicated`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from istmpi.engine.axes import Axis, Parameter
from istmpi.engine.positions import Positions


def cut(length: int, blocks: int, block: int) -> range:
    """Return the places of a block, if ``length`` places are cut into blocks whose lengths differ
    by at most 1."""
    return range(length * block // blocks, length * (block + 1) // blocks)


class Layout(Protocol):
    """The positions of every parameter that each rank has. A layout is pure, and the same on every
    rank."""

    @property
    def lengths(self) -> Mapping[str, int]:
        """The length of every named axis."""

    @property
    def ranks(self) -> int:
        """The number of ranks."""

    @property
    def units(self) -> Mapping[str, Sequence[np.ndarray]]:
        """The sorted units of each rank, for each unit group that is dealt out."""

    def positions(self, axis: Axis, place: int, rank: int) -> Positions:
        """Return the sorted positions that ``rank`` has along a tensor's axis number ``place``."""

    def largest(self, axis: Axis, place: int) -> int:
        """Return the most positions that any rank has along a tensor's axis number ``place``."""

    def copies(self, names: frozenset[str]) -> int:
        """Return the number of ranks that have an element of a tensor with these axis names, if any
        rank has it."""


class TrainingLayout(Layout, Protocol):
    """The layout in which ranks train in a round."""

    def held(self, rank: int) -> dict[str, Positions]:
        """Return the units of each dealt group that a rank holds."""

    def holder(self, axis: Axis) -> np.ndarray | None:
        """Return the rank that holds all units of each position along an axis: ``[length]`` int64,
        -1 for no rank. None for an axis that is not dealt out."""


NOTHING_DEALT: Mapping[str, Sequence[np.ndarray]] = MappingProxyType({})


@dataclass(frozen=True)
class Owners:
    """Contiguous blocks of rows, one for each rank; their lengths differ by at most 1.

    Every element has one owner.
    """

    lengths: Mapping[str, int]
    ranks: int

    @property
    def units(self) -> Mapping[str, Sequence[np.ndarray]]:
        return NOTHING_DEALT

    def rows(self, length: int, rank: int) -> range:
        return cut(length, self.ranks, rank)

    def positions(self, axis: Axis, place: int, rank: int) -> Positions:
        length = axis.length(self.lengths)
        rows = range(length)
        # A tensor's first axis alone is divided among owners.
        if place == 0:
            rows = self.rows(length, rank)
        return axis.inside(rows, self.lengths)

    def largest(self, axis: Axis, place: int) -> int:
        count = axis.count(self.lengths)
        if place > 0:
            return count
        # The first ranks may own a row more.
        most_rows = -(-axis.length(self.lengths) // self.ranks)
        return min(most_rows, count)

    def copies(self, names: frozenset[str]) -> int:
        return 1


@dataclass(frozen=True)
class Replicated:
    """A layout in which the ranks ``members`` (None: all ranks) have everything, and other ranks
    nothing."""

    lengths: Mapping[str, int]
    ranks: int
    members: tuple[int, ...] | None = None
    weights: tuple[int, ...] | None = None
    """The weight of each rank in a mean over ranks; None if all weights are the same."""

    @property
    def units(self) -> Mapping[str, Sequence[np.ndarray]]:
        return NOTHING_DEALT

    def held(self, rank: int) -> dict[str, Positions]:
        return {}

    def holder(self, axis: Axis) -> np.ndarray | None:
        return None

    def positions(self, axis: Axis, place: int, rank: int) -> Positions:
        if self.members is not None and rank not in self.members:
            return axis.inside(range(0), self.lengths)
        return axis.inside(range(axis.length(self.lengths)), self.lengths)

    def largest(self, axis: Axis, place: int) -> int:
        return axis.count(self.lengths)

    def copies(self, names: frozenset[str]) -> int:
        if self.members is None:
            return self.ranks
        return len(self.members)


def pieces_to_move(
    parameters: Mapping[str, Parameter], layouts: Iterable[Layout | None], shared: bool = True
) -> list[tuple[str, int, Parameter]]:
    """Return (name, number, piece) for the pieces of parameters that move.

    A rank's part of a piece has equally many copies everywhere. A parameter is one piece, unless an
    axis has segments of which the layouts deal out only some. ``shared``: False leaves out the
    pieces of such parameters that all ranks have.
    """
    groups: dict[str, Sequence[np.ndarray]] = {}
    for layout in layouts:
        if layout:
            groups.update(layout.units)
    moving = []
    for name, parameter in parameters.items():
        pieces = parameter.pieces(groups)
        for number, piece in enumerate(pieces):
            if shared or len(pieces) == 1 or piece.pattern.dealt(groups):
                moving.append((name, number, piece))
    return moving


def part_shape(layout: Layout, parameter: Parameter, rank: int) -> tuple[int, ...]:
    """Return the shape of the part of a parameter that a rank has in a layout."""
    return tuple(
        len(layout.positions(axis, place, rank))
        for place, axis in enumerate(parameter.pattern.axes)
    )


def count_largest_message(pieces: Iterable[Parameter], source: Layout, target: Layout) -> int:
    """Return the most bytes of ``pieces`` that any rank can send to another: the same number on all
    ranks."""
    total = 0
    for piece in pieces:
        elements = 1
        for place, axis in enumerate(piece.pattern.axes):
            elements *= min(source.largest(axis, place), target.largest(axis, place))
        total += elements * piece.itemsize
    return total
