"""Readings of a width that may be right, the likeliest first."""

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from istmpi.inspection.orders import Growth, Run, Structure, merge, orders_of
from istmpi.inspection.proof import Place, Reading

_Variable = tuple[str, object]
"""A structure or a run, with the kind of the axes that have it."""
Kind = Callable[[Place, object], object]
ALIKE: tuple[Kind, ...] = (
    lambda place, growth: growth,
    lambda place, growth: (growth, place[1]),
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
    kinds = {place: kind_of(place, growths[place]) for place in growths if place not in fixed}
    users: dict[_Variable, set[str]] = {}
    options: dict[_Variable, Sequence[Any]] = {}
    for place, kind in kinds.items():
        options.setdefault(("structure", kind), structures[place])
        users.setdefault(("structure", kind), set()).add(place[0])
        for part in itertools.chain(*structures[place]):
            if part > 0:
                options.setdefault(("run", kind_of(place, part)), [*orders_of(part)])
                users.setdefault(("run", kind_of(place, part)), set()).add(place[0])
    first_of = {kind: place for place, kind in reversed(kinds.items())}

    def runs_in(kind: object, structure: Structure) -> list[_Variable]:
        return [("run", kind_of(first_of[kind], part)) for part in structure if part > 0]

    def chosen(
        pending: Sequence[_Variable], before: dict[_Variable, Any]
    ) -> Iterator[dict[_Variable, Any]]:
        """Yield all choices for the variables; the last one's option changes first.

        Choices that differ from the last reading only in parameters outside ``read`` are skipped,
        because they would fail too.
        """
        if not pending:
            yield before
            return
        variable, *others = pending
        if variable in before:
            yield from chosen(others, before)
            return
        for option in options[variable]:
            runs = runs_in(variable[1], option) if variable[0] == "structure" else []
            yield from chosen([*runs, *others], {**before, variable: option})
            if users[variable].isdisjoint(read):
                return

    for choice in chosen([("structure", kind) for kind in dict.fromkeys(kinds.values())], {}):
        reading = {}
        for place, kind in kinds.items():
            order: list[Run | int] = []
            for part in choice["structure", kind]:
                order.append(choice["run", kind_of(place, part)] if part > 0 else -part)
            reading[place] = merge(order)
        yield {**reading, **fixed}
