"""Blocks that are dealt out whole, as units of a group: which parameters are whose. Pure, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from istmpi.engine.axes import Axis, Factor, Pattern


@dataclass(frozen=True)
class ResidualBlock:
    """A module that adds to its input what its ``ends``, layers inside it, make: both by their names in the network."""

    path: str
    ends: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Whether a module, or a parameter, is the block's own."""
        return name == self.path or name.startswith(f"{self.path}.")


Blocks = Mapping[str, Sequence[ResidualBlock]]
"""The units of each group of blocks, in their order."""


def unit_of(blocks: Blocks, name: str) -> Factor | None:
    """The unit that a module, or a parameter, is part of: ``blocks[3]``; None where it is on every rank."""
    units = ((group, number, block) for group, found in blocks.items() for number, block in enumerate(found))
    return next((Factor(group, 1, number) for group, number, block in units if block.has(name)), None)


def inside(pattern: Pattern, unit: Factor | None) -> Pattern:
    """The axes of something that is part of a unit: empty where a rank does not hold it."""
    if unit is None:
        return pattern
    first, *others = pattern.axes
    return Pattern((Axis((unit, *first.factors)), *others))
