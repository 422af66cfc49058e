"""The schedule of the ring all-reduce: which tensors travel together, and in which pieces.

Tensors are grouped into buckets. A bucket is cut into segments, and a segment into one chunk for
each rank. Every chunk goes round the ring once to be summed and once to be spread, so each rank
sends 2(P-1)/P of the bytes to the next rank. Encoded chunks (`istmpi.comm.codec`) go straight to
the rank that sums them: on the ring they would be rounded P-1 times.

The chunks of a short segment all go straight: to the rank that sums them, and from it to all
ranks. A rank then waits for other ranks twice instead of 2(P-1) times, sums in the same order, and
sends as many bytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from types import MappingProxyType

from istmpi.comm.codec import EXACT, count_encoded_bytes

BUCKET_BYTES = 2**20
"""Bytes of a bucket. Smaller tensors share a bucket; larger tensors travel alone, without a
copy."""
CHUNK_BYTES = 2**20
"""The most bytes of a message."""
SHORT_BYTES = 2**14
"""The most bytes of a chunk that goes straight. P-1 of them arrive at once, so they are short."""
CALLS = 2
"""The collective calls for which a segment counts: a reduce-scatter and an all-gather."""
SEGMENTS_AT_ONCE = 4
"""Segments under way at once. While one segment waits for the next rank, the others keep the line
busy."""


Forms = Mapping[str, str]
ALL_EXACT: Forms = MappingProxyType({})


def buckets(nbytes: Mapping[str, int], forms: Forms = ALL_EXACT) -> list[list[str]]:
    """Return the buckets of names in travel order, the last tensor first.

    A backward pass makes the gradient of the last tensor first. The tensors of a bucket have one
    form. A bucket is full when the next tensor of its form does not fit.
    """
    full: list[list[str]] = []
    filling: dict[str, list[str]] = {}
    free: dict[str, int] = {}
    for name in reversed([*nbytes]):
        form = forms.get(name, EXACT)
        names = filling.setdefault(form, [])
        if nbytes[name] > free.setdefault(form, 0):
            if names:
                full.append(names)
            filling[form] = []
            free[form] = BUCKET_BYTES
        # A tensor larger than a bucket leaves less than no room: nothing joins it.
        free[form] -= nbytes[name]
        filling[form].append(name)
    return [*full, *filling.values()]


def segments(elements: int, itemsize: int, ranks: int) -> Iterator[slice]:
    length = CHUNK_BYTES // itemsize * ranks
    for start in range(0, elements, length):
        yield slice(start, min(start + length, elements))


def chunks(elements: int, ranks: int) -> list[slice]:
    """Cut a segment into one chunk for each rank; lengths differ by at most one element."""
    return [
        slice(elements * rank // ranks, elements * (rank + 1) // ranks) for rank in range(ranks)
    ]


def is_short(nbytes: float | Fraction) -> bool:
    """Return True if the chunks of a segment, of at most ``nbytes``, go straight."""
    return nbytes <= SHORT_BYTES


def count_waits(nbytes: float | Fraction, ranks: int) -> int:
    """Return how many times a rank waits for others in a mean of ``nbytes`` in all."""
    if is_short(nbytes / ranks):
        return 2 * (ranks > 1)
    return 2 * (ranks - 1)


def count_calls(
    elements: Mapping[str, int], itemsize: int, ranks: int, forms: Forms = ALL_EXACT
) -> int:
    """Return the collective calls for which an all-reduce of these tensors counts."""
    if ranks == 1:
        return 0
    return CALLS * sum(1 for _ in _pieces(elements, itemsize, ranks, forms))


def count_calls_together(elements: Sequence[int], itemsize: int, ranks: int) -> int:
    """Return the collective calls of means of flat tensors that travel at the same time."""
    if ranks == 1:
        return 0
    pieces = sum(len([*segments(count, itemsize, ranks)]) for count in elements)
    return CALLS * -(-pieces // SEGMENTS_AT_ONCE)


def count_sent_bytes(
    elements: Mapping[str, int], itemsize: int, ranks: int, forms: Forms = ALL_EXACT
) -> list[int]:
    """Return the bytes that each rank sends in an all-reduce of these tensors.

    To sum, a rank sends every chunk but its own. To spread the means, it sends every chunk but its
    successor's.
    """
    sent = [0] * ranks
    for form, length in _pieces(elements, itemsize, ranks, forms):
        count_bytes = partial(count_encoded_bytes, form=form, itemsize=itemsize)
        for rank, nbytes in enumerate(count_sent(length, ranks, count_bytes)):
            sent[rank] += nbytes
    return sent


def count_sent(elements: int, ranks: int, nbytes: Callable[[int], int]) -> list[int]:
    """Return the bytes that each rank sends for a segment of ``elements`` values.

    A number n of values takes ``nbytes(n)`` bytes.
    """
    sizes = [nbytes(chunk.stop - chunk.start) for chunk in chunks(elements, ranks)]
    if is_short(max(sizes)):
        # All chunks but its own, and its own to all others.
        return [sum(sizes) + (ranks - 2) * size for size in sizes]
    # Once without its own chunk, once without its successor's.
    return [
        2 * sum(sizes) - size - after
        for size, after in zip(sizes, [*sizes[1:], sizes[0]], strict=True)
    ]


def once_round(
    elements: Mapping[str, int], itemsize: int, ranks: int, forms: Forms = ALL_EXACT
) -> int:
    """Return the bytes of all chunks of these tensors.

    In an all-reduce, all ranks send 2(P-1) times as many.
    """
    return sum(
        count_once_round(length, ranks, partial(count_encoded_bytes, form=form, itemsize=itemsize))
        for form, length in _pieces(elements, itemsize, ranks, forms)
    )


def count_once_round(elements: int, ranks: int, nbytes: Callable[[int], int]) -> int:
    """Return the bytes of all chunks of a segment of ``elements`` values.

    A number n of values takes ``nbytes(n)`` bytes.
    """
    # Closed form of the sum over `chunks`, whose lengths differ by at most one.
    shorter, longer = divmod(elements, ranks)
    return longer * nbytes(shorter + 1) + (ranks - longer) * nbytes(shorter)


def _pieces(
    elements: Mapping[str, int], itemsize: int, ranks: int, forms: Forms
) -> Iterator[tuple[str, int]]:
    for names in buckets({name: count * itemsize for name, count in elements.items()}, forms):
        for segment in segments(sum(elements[name] for name in names), itemsize, ranks):
            yield forms.get(names[0], EXACT), segment.stop - segment.start
