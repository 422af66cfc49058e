"""Layouts: the positions of a parameter that each rank has.

Every layout is an outer product: a rank's part of a tensor is given by one set of positions per
axis. The elements that two ranks have in common are an outer product, too. Every message therefore
is ``tensor[np.ix_(...)]``.

`Owners` is the layout of the ranks' stores. The layout of a round is
`istmpi.engine.partition.Partition`, or in federated averaging `Replicated`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from istmpi.engine.axes import Axis, Parameter, Positions


class Layout(Protocol):
    """The positions of every parameter that each rank has. A layout is pure, and the same on every
    rank."""

    lengths: Mapping[str, int]
    ranks: int

    @property
    def units(self) -> Mapping[str, object]:
        """The unit groups that are dealt out."""

    def positions(self, axis: Axis, place: int, rank: int) -> Positions:
        """The sorted positions that ``rank`` has along a tensor's axis number ``place``."""

    def largest(self, axis: Axis, place: int) -> int:
        """The most positions that any rank has along a tensor's axis number ``place``."""

    def copies(self, names: frozenset[str]) -> int:
        """Return the number of ranks that have an element of a tensor with these axis names, if any
        rank has it."""


@dataclass(frozen=True)
class Owners:
    """Contiguous blocks of rows, one for each rank; their lengths differ by at most 1. Elements
    have one owner."""

    lengths: Mapping[str, int]
    ranks: int

    units = MappingProxyType({})

    def rows(self, length: int, rank: int) -> range:
        return range(length * rank // self.ranks, length * (rank + 1) // self.ranks)

    def positions(self, axis: Axis, place: int, rank: int) -> Positions:
        length = axis.length(self.lengths)
        return axis.inside(self.rows(length, rank) if place == 0 else range(length), self.lengths)

    def largest(self, axis: Axis, place: int) -> int:
        count = axis.count(self.lengths)
        return min(-(-axis.length(self.lengths) // self.ranks), count) if place == 0 else count

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

    units = MappingProxyType({})

    def held(self, rank: int) -> dict[str, Positions]:
        return {}

    def positions(self, axis: Axis, place: int, rank: int) -> Positions:
        length = axis.length(self.lengths) if self.members is None or rank in self.members else 0
        return axis.inside(range(length), self.lengths)

    def largest(self, axis: Axis, place: int) -> int:
        return axis.count(self.lengths)

    def copies(self, names: frozenset[str]) -> int:
        return self.ranks if self.members is None else len(self.members)


def pieces_to_move(
    parameters: Mapping[str, Parameter], layouts: Iterable[Layout | None], shared: bool = True
) -> list[tuple[str, int, Parameter]]:
    """Return (name, number, piece) for the pieces of parameters that move: a rank's part of a piece
    has equal copies.

    A parameter is one piece, unless an axis has segments of which the layouts deal out only some.
    ``shared``: False leaves out the pieces of such parameters that all ranks have.
    """
    groups: dict[str, object] = {}
    for layout in layouts:
        groups |= layout.units if layout else {}
    moving = []
    for name, parameter in parameters.items():
        pieces = parameter.pieces(groups)
        for number, piece in enumerate(pieces):
            if shared or len(pieces) == 1 or piece.pattern.dealt(groups):
                moving.append((name, number, piece))
    return moving


def part_shape(layout: Layout, parameter: Parameter, rank: int) -> tuple[int, ...]:
    return tuple(
        len(layout.positions(axis, place, rank))
        for place, axis in enumerate(parameter.pattern.axes)
    )
