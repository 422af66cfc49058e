"""Readings of a width that may be right, the likeliest first."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from istmpi.inspection.orders import Growth, Structure, merge, orders_of
from istmpi.inspection.proof import Place, Reading

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
    axis may have. ``read``: the parameters used before the last reading failed (`_choices`).
    """
    kinds = {place: kind_of(place, growths[place]) for place in growths if place not in fixed}
    options = {kind: structures[place] for place, kind in kinds.items()}
    for chosen in _choices(options, kinds.items(), read):
        structure_of = {place: chosen[kind] for place, kind in kinds.items()}
        runs = [
            (place, kind_of(place, part), part)
            for place, structure in structure_of.items()
            for part in structure
            if part > 0
        ]
        orders = {kind: [*orders_of(part)] for _, kind, part in runs}
        for orders_chosen in _choices(orders, [(place, kind) for place, kind, _ in runs], read):
            reading = {}
            for place, structure in structure_of.items():
                reading[place] = merge(
                    orders_chosen[kind_of(place, part)] if part > 0 else -part for part in structure
                )
            yield {**reading, **fixed}


def _choices(
    options: Mapping[object, Sequence[Any]],
    users: Iterable[tuple[Place, object]],
    read: Collection[str],
) -> Iterator[dict[object, Any]]:
    """Yield all choices of an option for each kind; the last kind's option changes first.
    ``users``: axes and kinds.

    Choices that differ from the last reading only in parameters outside ``read``, which were not
    used before it failed, are skipped, because they would fail too.
    """
    users = [*users]
    if not options:
        yield {}
        return
    kind, *others = options
    for option in options[kind]:
        for rest in _choices({other: options[other] for other in others}, users, read):
            yield {kind: option, **rest}
        if not any(place[0] in read for place, its in users if its == kind):
            return
