"""The schedule of the ring all-reduce: which tensors travel together, and in which pieces. Pure.

Tensors are grouped into buckets, a bucket is cut into segments, a segment into one chunk a rank. Every chunk goes once
round the ring to be added up and once more to be spread, so each rank sends 2(P-1)/P of the bytes to its neighbour.
"""

from collections.abc import Iterator, Mapping

BUCKET_BYTES = 2**20
"""Smaller tensors travel together; larger ones by themselves, without a copy."""
CHUNK_BYTES = 2**20
"""Most bytes in a message."""
SEGMENTS_AT_ONCE = 4
"""While one waits for its neighbour, the others keep the line busy."""


def buckets(nbytes: Mapping[str, int]) -> list[list[str]]:
    """Names in the order in which they travel: the last first, for a backward pass makes its gradient first."""
    grouped: list[list[str]] = []
    room = 0
    for name, size in reversed(nbytes.items()):
        if size > room:
            grouped.append([])
            room = BUCKET_BYTES
        grouped[-1].append(name)
        room -= size
    return grouped


def segments(elements: int, itemsize: int, ranks: int) -> Iterator[slice]:
    """A bucket of so many elements cut into segments."""
    most = CHUNK_BYTES // itemsize * ranks
    for start in range(0, elements, most):
        yield slice(start, min(start + most, elements))


def chunks(elements: int, ranks: int) -> list[slice]:
    """A segment of so many elements cut into one chunk a rank; they differ by at most one element."""
    return [slice(elements * rank // ranks, elements * (rank + 1) // ranks) for rank in range(ranks)]


def sent_bytes(elements: Mapping[str, int], itemsize: int, ranks: int) -> list[int]:
    """What each rank sends in an all-reduce of these tensors.

    To be added up, every chunk but its own; to be spread, every chunk but its successor's.
    """
    sent = [0] * ranks
    for names in buckets({name: count * itemsize for name, count in elements.items()}):
        for segment in segments(sum(elements[name] for name in names), itemsize, ranks):
            sizes = [chunk.stop - chunk.start for chunk in chunks(segment.stop - segment.start, ranks)]
            for rank in range(ranks):
                sent[rank] += itemsize * (2 * sum(sizes) - sizes[rank] - sizes[(rank + 1) % ranks])
    return sent
