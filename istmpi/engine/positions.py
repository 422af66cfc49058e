"""Sorted positions along an axis, and what two ranks' positions have in common."""

import numpy as np

Positions = range | np.ndarray
"""Sorted positions along an axis: a range if they are contiguous, or an int64 array ``[count]``."""


def shift(positions: Positions, offset: int) -> Positions:
    if isinstance(positions, range):
        return range(positions.start + offset, positions.stop + offset)
    return positions + offset


def join(parts: list[Positions]) -> Positions:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


def overlap(positions: Positions, others: Positions) -> tuple[slice | np.ndarray, int]:
    """Return the places in ``positions`` of the common positions, and the number of places.

    The arguments are sorted, and the places ascend, so sender and receiver list the positions in
    the same order.
    """
    if isinstance(positions, range):
        if isinstance(others, range):
            start = max(positions.start, others.start)
            stop = max(min(positions.stop, others.stop), start)
            return slice(start - positions.start, stop - positions.start), stop - start
        first, last = others.searchsorted((positions.start, positions.stop)).tolist()
        return others[first:last] - positions.start, last - first
    if isinstance(others, range):
        first, last = positions.searchsorted((others.start, others.stop)).tolist()
        return slice(first, last), last - first
    nearest = others.searchsorted(positions)
    if not len(others):  # nothing to clip to below
        return nearest[:0], 0
    # A position above all others is compared with the last of them, from which it differs.
    where = np.flatnonzero(others.take(nearest, mode="clip") == positions)
    return where, len(where)
