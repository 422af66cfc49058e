"""Brings the moments of subnets side by side together, in two messages whose bytes are known
before the run (`istmpi.cost.moments`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from istmpi.comm import Communicator
from istmpi.network.norms import Moments

_ABSENT = -1
"""The number of units of a layer that a subnet lacks."""
_NOT_CALLED = -2
"""The number of units of a layer that no pass called, so that its moments are unknown."""


def gather_moments(
    here: Mapping[str, Moments],
    names_by_rank: Sequence[Sequence[str]],
    dtype: torch.dtype,
    communicator: Communicator,
) -> dict[str, Moments]:
    """Return the moments of all ranks on every rank; None for a layer that no pass called.
    Collective.

    ``here``: this rank's moments. ``names_by_rank``: the layers that each rank may have, with equal
    lists on all ranks. ``dtype``: that of all moments.
    """
    units = []
    values = [torch.empty(0, dtype=dtype)]
    for name in names_by_rank[communicator.rank]:
        moments = here.get(name)
        if moments is not None:
            units.append(len(moments[0]))
            values += [part.to(dtype) for part in moments]
        elif name in here:
            units.append(_NOT_CALLED)
        else:
            units.append(_ABSENT)
    counts = [len(names) for names in names_by_rank]
    units_of_all = communicator.allgatherv(np.array(units, dtype=np.int64), counts).tolist()
    names = [name for names_of_rank in names_by_rank for name in names_of_rank]
    lengths = _add_up_by_rank(units_of_all, counts)
    joined = communicator.allgatherv(torch.cat(values).numpy(), lengths)
    return _cut(torch.from_numpy(joined), names, units_of_all)


def _add_up_by_rank(units: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Return how many values each rank sends: a mean and a variance for each of its units."""
    lengths = []
    start = 0
    for count in counts:
        of_rank = units[start : start + count]
        lengths.append(2 * sum(number for number in of_rank if number > 0))
        start += count
    return lengths


def _cut(joined: torch.Tensor, names: Sequence[str], units: Sequence[int]) -> dict[str, Moments]:
    moments: dict[str, Any] = {}
    start = 0
    for name, number in zip(names, units, strict=True):
        if number == _NOT_CALLED:
            moments[name] = None
        if number < 0:
            continue
        mean, variance = joined[start : start + 2 * number].clone().view(2, number)
        moments[name] = (mean, variance)
        start += 2 * number
    return moments
