"""The bytes that packed values take, without torch: `istmpi.engine.few_bits` writes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BLOCK = 1024
"""Values of 4 bits that share a scale."""
CHUNK = 4096
"""Values in a chunk, of which the largest are sent."""


def float4_bytes(count: int) -> int:
    """The bytes of ``count`` values as floats of 4 bits: a float32 for each block, two values in a byte."""
    return 4 * -(-count // BLOCK) + -(-count // 2)


def top_k_entries(top: int, sizes: Sequence[int]) -> int:
    """Count the values sent of tensors of these sizes: ``top`` of a chunk, in proportion of a shorter last one."""
    return sum(top * (size // CHUNK) + -(-top * (size % CHUNK) // CHUNK) for size in sizes)


def top_k_bytes(top: int, sizes: Sequence[int], itemsize: int | None) -> int:
    """The bytes of the largest values: 12 bits a place; ``itemsize`` a value, or 2 bits and 4 bytes a chunk."""
    entries = top_k_entries(top, sizes)
    places = -(-3 * entries // 2)
    if itemsize:
        return places + entries * itemsize
    return places + -(-entries // 4) + 4 * sum(-(-size // CHUNK) for size in sizes)


@dataclass(frozen=True)
class Largest:
    """A message of SparseLoCo about changes: the ``top`` largest of every `CHUNK` values, as 2 bits or as they are."""

    top: int
    two_bits: bool
    feedback: float
    """The part that a rank keeps of what it has not sent in earlier rounds."""

    @staticmethod
    def of(settings: Any) -> "Largest":
        return Largest(settings.top, settings.top_values == "2bit", settings.feedback)

    def nbytes(self, sizes: Sequence[int], itemsize: int) -> int:
        return top_k_bytes(self.top, sizes, None if self.two_bits else itemsize)
