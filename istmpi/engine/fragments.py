"""Fragments: the parts of a network that are sent one by one in a round, and the local steps when
they leave. Pure.

A layer is a parameter of two or more axes, and the parameters of fewer axes that follow it.
Fragment p of F has the layers p, p+F, p+2F, ...: in a deep network, each fragment has layers near
the input and layers near the output.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from istmpi.engine.axes import Parameter


@dataclass(frozen=True)
class Departure:
    """Parameters that leave together after ``leaves`` local steps of every round, and arrive after
    ``arrives``."""

    leaves: int
    arrives: int
    names: tuple[str, ...]


def layers(parameters: Mapping[str, Parameter]) -> list[list[str]]:
    """Return the names of each layer, in the network's order. Parameters before the first matrix
    join its layer."""
    by_layer: list[list[str]] = []
    # Whether the last layer has its matrix; only vectors before the first matrix lack one.
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
    """Return the departures of a round of ``steps`` local steps, in order of time; all arrive by
    the round's end.

    Departures are spread evenly; the last is ``delay`` (at most ``steps - 1``) steps before the
    end. A fragment that would not arrive before the next leaves goes with it. There are
    ``fragments`` (default `FRAGMENTS`), at most one a layer.
    """
    delay = min(delay, steps - 1)
    every = layers(parameters)
    last = steps - delay
    count = min(fragments or FRAGMENTS, len(every))
    leaves = last
    by_step: dict[int, set[str]] = {}
    for number in reversed(range(count)):
        # From the last departure back to the first, so that a fragment can join the next one.
        planned = -(-last * (number + 1) // count)
        if leaves - planned > delay:
            leaves = planned
        by_step.setdefault(leaves, set()).update(*every[number::count])
    plan = []
    for leaves in sorted(by_step):
        names = tuple(name for name in parameters if name in by_step[leaves])
        plan.append(Departure(leaves=leaves, arrives=leaves + delay, names=names))
    return plan
