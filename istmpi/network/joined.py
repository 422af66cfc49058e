"""Factors along an axis that is a sum of segments, as ``hidden + 6``: each segment has the factor
of its own units.

A factor is a number or, along such an axis, a vector with a number for each position.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from istmpi.engine.axes import Axis
from istmpi.network.table import split_power

Factor = float | np.ndarray


def groups_on(axis: Axis) -> tuple[str, ...]:
    """Return the groups over which a sum along an axis adds, once for each factor of a segment."""
    groups: list[str] = []
    for segment in axis.segments:
        names = [factor.name for factor in segment.factors if factor.name]
        for name in dict.fromkeys(names):
            # A group of several segments counts as often as in that where it is most often.
            groups += [name] * (names.count(name) - groups.count(name))
    return tuple(groups)


def segment_factors(
    axis: Axis,
    groups: Sequence[str],
    lengths: Mapping[str, int],
    factor: Callable[[tuple[str, ...]], Any],
) -> list[tuple[Any, int]]:
    """Return the factor and the length of each segment; ``factor(groups)`` is that of a product
    over some groups."""
    # The usual case: one number, without a vector of equal ones.
    if len(axis.segments) == 1:
        return [(factor(tuple(groups)), axis.length(lengths))]
    pairs = []
    for segment in axis.segments:
        summed = tuple(entry for entry in groups if split_power(entry)[0] in segment.names)
        pairs.append((factor(summed), segment.length(lengths)))
    return pairs


def vector(pairs: Sequence[tuple[float, int]]) -> Factor:
    """Return the factors of segments as one number, if they are equal, or as a vector."""
    factors = [factor for factor, _ in pairs]
    if len(set(factors)) == 1:
        return factors[0]
    return np.repeat(np.array(factors), [length for _, length in pairs])


def along(factor: Any, axis: int, axes: int) -> Any:
    """Return a vector as an array with this number of axes, which multiplies a tensor along
    ``axis``."""
    if getattr(factor, "ndim", 0) == 0:
        return factor
    shape = [1] * axes
    shape[axis] = -1
    return factor.reshape(shape)


def of_rows(factor: Factor, start: int, stop: int) -> Factor:
    """Return the factor of some rows of a tensor."""
    if isinstance(factor, np.ndarray) and len(factor) > 1:
        return factor[start:stop]
    return factor


def changes(factor: Factor) -> bool:
    """Return True if a factor is not 1 everywhere."""
    return bool(np.any(factor != 1))


def as_tensor(factor: Factor) -> Any:
    """Return a number unchanged, and a vector as a tensor."""
    import torch

    if isinstance(factor, np.ndarray):
        return torch.from_numpy(factor)
    return factor


def is_constant(pairs: Sequence[tuple[Any, int]]) -> bool:
    """Return True if all factors are numbers, and not tensors that a pass computes anew."""
    return all(isinstance(factor, float) for factor, _ in pairs)


def positions(pairs: Sequence[tuple[Any, int]]) -> Any:
    """Return the factors of segments: one factor if they are equal, else a tensor of all positions.

    The factors may be tensors.
    """
    import torch

    if is_constant(pairs):
        return as_tensor(vector(pairs))
    if len(pairs) == 1:
        return pairs[0][0]
    values = []
    for factor, length in pairs:
        values.append(torch.as_tensor(factor, dtype=torch.float64).reshape(1).expand(length))
    return torch.cat(values)


def multiply_along(x: Any, factor: Any, axis: int | None) -> Any:
    """Multiply a tensor by a number, or along an axis by a vector, which a convolution's groups
    repeat."""
    import torch

    # torch.compile traces isinstance on a number, but not getattr.
    if not isinstance(factor, torch.Tensor) or factor.ndim == 0:
        return x * factor
    if axis is None:
        raise AssertionError("a factor for each position needs the axis")
    factor = factor.repeat(x.shape[axis] // len(factor)).to(x.device, x.dtype)
    return x * along(factor, axis, x.ndim)
