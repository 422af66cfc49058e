"""The number of bytes of packed values, computed without torch. `istmpi.engine.few_bits` writes these bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

BLOCK = 1024
"""The number of 4-bit values that share a scale."""
CHUNK = 4096
"""The number of values in a chunk; the largest of them are sent."""


def float4_bytes(count: int) -> int:
    """Return the bytes of ``count`` values as floats of 4 bits: a float32 for each block, two values in a byte."""
    return 4 * -(-count // BLOCK) + -(-count // 2)


def top_k_entries(top: int, sizes: Sequence[int]) -> int:
    """Count the values that tensors of these sizes send: ``top`` for a chunk, fewer for a shorter last chunk."""
    return sum(top * (size // CHUNK) + -(-top * (size % CHUNK) // CHUNK) for size in sizes)


def top_k_bytes(top: int, sizes: Sequence[int]) -> int:
    """Return the bytes sent: 12 bits for a place, 2 for a value, and 4 bytes for a chunk."""
    entries = top_k_entries(top, sizes)
    return -(-3 * entries // 2) + -(-entries // 4) + 4 * sum(-(-size // CHUNK) for size in sizes)


@dataclass(frozen=True)
class Largest:
    """The form of SparseLoCo's messages: the ``top`` largest changes of every `CHUNK`, in 2 bits each."""

    top: int
    feedback: float
    """The fraction of its unsent changes that a rank adds to its next change."""
