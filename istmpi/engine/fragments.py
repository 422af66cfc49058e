"""Fragments: the parts of a network, and the local steps after which each leaves in a round. Pure.

A layer is a parameter of two axes or more with those of one axis behind it. Of F fragments, number p has the layers
p, p+F, p+2F, ...: so each has some of the input's end and some of the output's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from istmpi.engine.axes import Parameter


@dataclass(frozen=True)
class Departure:
    """Parameters that leave together after so many local steps of every round, and arrive after so many."""

    leaves: int
    arrives: int
    names: tuple[str, ...]


def layers(parameters: Mapping[str, Parameter]) -> list[list[str]]:
    """Names by layer, in the network's order; parameters before the first matrix belong to it."""
    by_layer: list[list[str]] = []
    has_matrix = True
    for name, parameter in parameters.items():
        matrix = len(parameter.pattern.axes) > 1
        if not by_layer or (matrix and has_matrix):
            by_layer.append([])
            has_matrix = False
        has_matrix |= matrix
        by_layer[-1].append(name)
    return by_layer


FRAGMENTS = 4


def departures(
    parameters: Mapping[str, Parameter], fragments: int | None, steps: int, delay: int
) -> Sequence[Departure]:
    """The departures of a round of so many local steps, in their order; all have arrived at its end.

    They are spread evenly up to the last step from which a fragment can arrive. ``delay`` is cut to what a round has
    room for; a fragment due before another's arrival leaves with the next one. No more fragments than layers.
    """
    delay = min(delay, steps - 1)
    every, last = layers(parameters), steps - delay
    count = min(fragments or FRAGMENTS, len(every))
    leaves, by_step = last, {}
    for number in reversed(range(count)):
        planned = -(-last * (number + 1) // count)
        if leaves - planned > delay:
            leaves = planned
        by_step.setdefault(leaves, set()).update(name for layer in every[number::count] for name in layer)
    return [
        Departure(leaves, leaves + delay, tuple(name for name in parameters if name in by_step[leaves]))
        for leaves in sorted(by_step)
    ]
