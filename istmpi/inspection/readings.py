"""Readings of a width that may be right, the likeliest first."""

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from istmpi.inspection.orders import Band, Growth, Structure, merge, possible_bands
from istmpi.inspection.proof import Place, Reading

_Variable = tuple[str, object]
"""A structure or a band, with the kind of the axes that have it."""
_Choice = Mapping[_Variable, Any]
Kind = Callable[[Place, object], object]
ALIKE: tuple[Kind, ...] = (
    # Axes that grow alike.
    lambda place, growth: growth,
    # Those of them that are the same axis of their parameters.
    lambda place, growth: (growth, place[1]),
    # Those in modules whose names differ in numbers alone, as layers of one kind.
    lambda place, growth: (growth, re.sub(r"\d+", "#", place[0].rpartition(".")[0])),
)
"""Functions that return the kind of an axis, the simplest first. Axes of one kind have the same
reading."""


def readings(
    growths: Mapping[Place, Growth],
    structures: Mapping[Place, Sequence[Structure]],
    kind_of: Kind,
    fixed: Reading,
    read: Collection[str],
) -> Iterator[Reading]:
    """Yield readings in which axes of one kind have the same order, and ``fixed`` axes their
    declared order.

    ``growths`` are in the order in which a pass uses the parameters. ``structures``: those that an
    axis may have. ``read``: the parameters used before the last reading failed.
    """
    inferred = {place: growth for place, growth in growths.items() if place not in fixed}
    search = _Search(inferred, structures, kind_of)
    for choice in search.choices(search.first, {}, read):
        yield {**search.reading(choice), **fixed}


class _Search:
    """The structure of each kind of axes, and the band of each kind of parts, as variables."""

    def __init__(
        self,
        growths: Mapping[Place, Growth],
        structures: Mapping[Place, Sequence[Structure]],
        kind_of: Kind,
    ):
        self._kind_of = kind_of
        self._kinds = {place: kind_of(place, growth) for place, growth in growths.items()}
        self._options: dict[_Variable, Sequence[Any]] = {}
        self._users: dict[_Variable, set[str]] = {}
        """The parameters that may have a part of this kind."""
        self._place_of: dict[object, Place] = {}
        for place, kind in self._kinds.items():
            self._place_of.setdefault(kind, place)
            self._add(("structure", kind), structures[place], place)
            for ratio in sorted(set(itertools.chain(*structures[place]))):
                # Positions of no unit, which are negative numbers, have no band.
                if ratio > 0:
                    self._add(("band", kind_of(place, ratio)), [*possible_bands(ratio)], place)
        self.first: list[_Variable] = [("structure", kind) for kind in self._place_of]

    def _add(self, variable: _Variable, options: Sequence[Any], place: Place) -> None:
        name, _ = place
        self._options.setdefault(variable, options)
        self._users.setdefault(variable, set()).add(name)

    def choices(
        self, pending: Sequence[_Variable], before: _Choice, read: Collection[str]
    ) -> Iterator[_Choice]:
        """Yield all choices for the variables; the last one's option changes first.

        Choices that differ from the last reading only in parameters outside ``read`` are skipped,
        because they would fail too.
        """
        if not pending:
            yield before
            return
        variable, *others = pending
        if variable in before:
            yield from self.choices(others, before, read)
            return
        for option in self._options[variable]:
            following = [*self._runs_in(variable, option), *others]
            yield from self.choices(following, {**before, variable: option}, read)
            # Another option would change only parameters that the failed pass had not read yet.
            if self._users[variable].isdisjoint(read):
                return

    def _runs_in(self, variable: _Variable, option: Any) -> list[_Variable]:
        """Return the variables that the choice of a structure brings."""
        what, kind = variable
        if what == "band":
            return []
        place = self._place_of[kind]
        return [("band", self._kind_of(place, ratio)) for ratio in option if ratio > 0]

    def reading(self, choice: _Choice) -> Reading:
        """Return the order on each axis for a choice of all structures and bands."""
        reading = {}
        for place, kind in self._kinds.items():
            order: list[Band | int] = []
            for part in choice["structure", kind]:
                if part > 0:
                    order.append(choice["band", self._kind_of(place, part)])
                else:
                    order.append(-part)
            reading[place] = merge(order)
        return reading
