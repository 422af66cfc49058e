"""The number of bytes of packed values, computed without torch. `istmpi.engine.few_bits` writes
these bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

BLOCK = 1024
"""The number of 4-bit values that share a scale."""
CHUNK = 4096
"""The number of values in a chunk; the largest of them are sent."""


def float4_bytes(count: int) -> int:
    """Return the bytes of ``count`` values as floats of 4 bits: a float32 for each block, two
    values in a byte."""
    return 4 * -(-count // BLOCK) + -(-count // 2)


def top_k_entries(top: int, sizes: Sequence[int]) -> int:
    """Count the sent values of tensors with ``sizes`` elements: ``top`` of a chunk, fewer of a
    shorter last chunk."""
    return sum(top * (size // CHUNK) + -(-top * (size % CHUNK) // CHUNK) for size in sizes)


def top_k_bytes(top: int, sizes: Sequence[int]) -> int:
    """Return the bytes of a message: 12 bits for each place, 2 for each value, 4 bytes for each
    chunk."""
    entries = top_k_entries(top, sizes)
    return -(-3 * entries // 2) + -(-entries // 4) + 4 * sum(-(-size // CHUNK) for size in sizes)


@dataclass(frozen=True)
class Largest:
    """The form of SparseLoCo's messages: places and 2-bit values of the ``top`` largest of every
    `CHUNK` changes."""

    top: int
    feedback: float
    """The fraction of its unsent changes that a rank adds to its next change."""
