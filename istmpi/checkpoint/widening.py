"""Begins a wider network with the weights of a narrower one (`train.widen`).

The narrow network's units become the first units of the wide one. Weights from new units to old
ones are 0, all other new weights have their initial values. The wide network therefore computes
what the narrow one does, unless a normalisation or a softmax goes over its units.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from istmpi.engine.axes import Axis
from istmpi.network.architecture import Architecture


@dataclass(frozen=True)
class Place:
    """The sorted positions of a narrow tensor along each axis of a wide one."""

    positions: tuple[np.ndarray, ...]

    def find_rows(self, wide: range) -> range:
        """Return the narrow tensor's rows among the ``wide`` rows."""
        first, last = np.searchsorted(self.positions[0], [wide.start, wide.stop])
        return range(int(first), int(last))

    def fill(self, target: torch.Tensor, wide: range, values: torch.Tensor) -> None:
        """Set ``target``, the ``wide`` rows of the tensor, to the ``values`` of `find_rows`."""
        rows = self.find_rows(wide)
        old_rows = self.positions[0][rows.start : rows.stop] - wide.start
        if target.ndim > 1:
            # Old units do not hear new ones.
            target[torch.from_numpy(old_rows)] = 0
        target[np.ix_(old_rows, *self.positions[1:])] = values.to(target)


def find_place(
    narrow: Architecture | None, source: str, wide: Architecture, name: str
) -> Place | None:
    """Return the place of ``source``, a tensor of the narrow network, in the parameter ``name`` of
    the wide one.

    None if the file has no table of a network, if the axes have other names or several segments, or
    if one is longer. Only the first two axes may be wider: further ones are a kernel's.
    """
    if narrow is None or source not in narrow.parameters or name not in wide.parameters:
        return None
    before = narrow.parameters[source].pattern
    after = wide.parameters[name].pattern
    if len(before.axes) != len(after.axes):
        return None
    if before.shape(narrow.lengths)[2:] != after.shape(wide.lengths)[2:]:
        return None
    positions = []
    for few, many in zip(before.axes, after.axes, strict=True):
        along_axis = _find_positions(few, narrow.lengths, many, wide.lengths)
        if along_axis is None:
            return None
        positions.append(along_axis)
    return Place(tuple(positions))


def _find_positions(
    narrow: Axis, few: Mapping[str, int], wide: Axis, many: Mapping[str, int]
) -> np.ndarray | None:
    # The weights of an axis of several segments may have several factors.
    several = len(narrow.segments) > 1 or len(wide.segments) > 1
    if several or _list_names(narrow) != _list_names(wide):
        return None
    positions = np.zeros(1, dtype=np.int64)
    # Outermost first, as in Segment.positions.
    for before, after in zip(narrow.factors, wide.factors, strict=True):
        length = after.length(many)
        count = before.length(few)
        if count > length:
            return None
        positions = (positions[:, None] * length + np.arange(count)).ravel()
    return positions


def _list_names(axis: Axis) -> list[tuple[str | None, int | None]]:
    return [(factor.name, factor.unit) for factor in axis.factors]
