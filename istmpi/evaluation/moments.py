"""Moments of subnets side by side as a flat vector, which ranks add up with the outputs of a
pass. Its length is known before the run (`istmpi.cost.moments`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from istmpi.network.norms import Moments

_NOT_CALLED = -1.0
"""The variances of a layer that no pass called, so that its moments are unknown."""


def pack_moments(
    here: Mapping[str, Moments], units: Mapping[str, int], dtype: torch.dtype
) -> torch.Tensor:
    """Return a vector with the moments of the layers ``here``, and 0 for all others.

    ``units``: the number of units of each layer of all subnets, in an order that is equal on all
    ranks; a layer without units has no moments.
    """
    values = [torch.empty(0, dtype=dtype)]
    for name, count in units.items():
        if name not in here or not count:
            values.append(torch.zeros(2 * count, dtype=dtype))
            continue
        moments = here[name]
        if moments is None:
            unknown = torch.full((count,), _NOT_CALLED, dtype=dtype)
            moments = (unknown, unknown)
        values += [part.to(dtype) for part in moments]
    return torch.cat(values)


def unpack_moments(vector: torch.Tensor, units: Mapping[str, int]) -> dict[str, Moments]:
    """Return the moments of all layers that have units; None for a layer that no pass called.

    ``vector``: the sum over ranks of what `pack_moments` returns.
    """
    moments: dict[str, Any] = {}
    start = 0
    for name, count in units.items():
        if not count:
            continue
        mean, variance = vector[start : start + 2 * count].clone().view(2, count)
        moments[name] = (mean, variance)
        if variance[0] == _NOT_CALLED:
            moments[name] = None
        start += 2 * count
    return moments
