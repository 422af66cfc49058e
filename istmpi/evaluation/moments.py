"""Brings the moments of subnets side by side together, in a message whose bytes are known before
the run (`istmpi.cost.moments`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from istmpi.comm import Communicator
from istmpi.network.norms import Moments

_NOT_CALLED = -1.0
"""The variances of a layer that no pass called, so that its moments are unknown."""


def gather_moments(
    here: Mapping[str, Moments],
    units_by_rank: Sequence[Mapping[str, int]],
    dtype: torch.dtype,
    communicator: Communicator,
) -> dict[str, Moments]:
    """Return the moments of all ranks on every rank; None for a layer that no pass called.
    Collective.

    ``here``: this rank's moments. ``units_by_rank``: the units of each rank's layers, equal on all
    ranks; a layer without units has no moments. ``dtype``: that of all moments.
    """
    values = [torch.empty(0, dtype=dtype)]
    for name, units in units_by_rank[communicator.rank].items():
        if not units:
            continue
        moments = here[name]
        if moments is None:
            unknown = torch.full((units,), _NOT_CALLED, dtype=dtype)
            moments = (unknown, unknown)
        values += [part.to(dtype) for part in moments]
    lengths = [2 * sum(units.values()) for units in units_by_rank]
    joined = communicator.allgatherv(torch.cat(values).numpy(), lengths)
    # Two ranks may have the same subnet.
    layers = [layer for units_of_rank in units_by_rank for layer in units_of_rank.items()]
    return _cut(torch.from_numpy(joined), layers)


def _cut(joined: torch.Tensor, layers: Iterable[tuple[str, int]]) -> dict[str, Moments]:
    moments: dict[str, Any] = {}
    start = 0
    for name, units in layers:
        if not units:
            continue
        mean, variance = joined[start : start + 2 * units].clone().view(2, units)
        moments[name] = (mean, variance)
        if variance[0] == _NOT_CALLED:
            moments[name] = None
        start += 2 * units
    return moments
