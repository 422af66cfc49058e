"""The schedule of the ring all-reduce: which tensors travel together, and in which pieces. Pure.

Tensors are grouped into buckets, a bucket is cut into segments, a segment into one chunk a rank. Every chunk goes once
round the ring to be added up and once more to be spread, so each rank sends 2(P-1)/P of the bytes to its neighbour.
What is encoded (`istmpi.comm.codec`) goes straight to the rank that adds it up, or it would be rounded P-1 times.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType

from istmpi.comm.codec import EXACT, encoded_bytes

BUCKET_BYTES = 2**20
"""Smaller tensors travel together; larger ones by themselves, without a copy."""
CHUNK_BYTES = 2**20
"""The bytes of a message at most."""
SEGMENTS_AT_ONCE = 4
"""While one waits for its neighbour, the others keep the line busy."""


Forms = Mapping[str, str]
ALL_EXACT: Forms = MappingProxyType({})


def buckets(nbytes: Mapping[str, int], forms: Forms = ALL_EXACT) -> list[list[str]]:
    """Names in the order in which they travel: the last first, for a backward pass makes its gradient first.

    A bucket has one form; it travels when the first tensor comes that finds no room in it, or at the end.
    """
    full: list[list[str]] = []
    filling: dict[str, tuple[list[str], int]] = {}
    for name, size in reversed(nbytes.items()):
        form = forms.get(name, EXACT)
        names, room = filling.get(form, ([], 0))
        if size > room:
            full += [names] if names else []
            names, room = [], BUCKET_BYTES
        filling[form] = [*names, name], room - size
    return full + [names for names, _ in filling.values()]


def segments(elements: int, itemsize: int, ranks: int) -> Iterator[slice]:
    length = CHUNK_BYTES // itemsize * ranks
    for start in range(0, elements, length):
        yield slice(start, min(start + length, elements))


def chunks(elements: int, ranks: int) -> list[slice]:
    """A segment of so many elements cut into one chunk a rank; they differ by at most one element."""
    return [slice(elements * rank // ranks, elements * (rank + 1) // ranks) for rank in range(ranks)]


def sent_bytes(elements: Mapping[str, int], itemsize: int, ranks: int, forms: Forms = ALL_EXACT) -> list[int]:
    """Bytes that each rank sends in an all-reduce of these tensors.

    To be added up, every chunk but its own; to be spread, every chunk but its successor's.
    """
    sent = [0] * ranks
    for form, length in _pieces(elements, itemsize, ranks, forms):
        for rank, nbytes in enumerate(sent_of(length, ranks, partial(encoded_bytes, form=form, itemsize=itemsize))):
            sent[rank] += nbytes
    return sent


def sent_of(elements: int, ranks: int, nbytes: Callable[[int], int]) -> list[int]:
    """`sent_bytes` of one segment; ``nbytes``: bytes of a chunk of so many elements."""
    sizes = [nbytes(chunk.stop - chunk.start) for chunk in chunks(elements, ranks)]
    return [2 * sum(sizes) - size - after for size, after in zip(sizes, [*sizes[1:], sizes[0]], strict=True)]


def once_round(elements: Mapping[str, int], itemsize: int, ranks: int, forms: Forms = ALL_EXACT) -> int:
    """Bytes of all chunks of these tensors: each rank sends them to all but one, twice, over all ranks."""
    return sum(
        once_round_of(length, ranks, partial(encoded_bytes, form=form, itemsize=itemsize))
        for form, length in _pieces(elements, itemsize, ranks, forms)
    )


def once_round_of(elements: int, ranks: int, nbytes: Callable[[int], int]) -> int:
    """`once_round` of one segment; ``nbytes``: bytes of a chunk of so many elements."""
    shorter, longer = divmod(elements, ranks)
    return longer * nbytes(shorter + 1) + (ranks - longer) * nbytes(shorter)


def _pieces(elements: Mapping[str, int], itemsize: int, ranks: int, forms: Forms) -> Iterator[tuple[str, int]]:
    for names in buckets({name: count * itemsize for name, count in elements.items()}, forms):
        for segment in segments(sum(elements[name] for name in names), itemsize, ranks):
            yield forms.get(names[0], EXACT), segment.stop - segment.start
