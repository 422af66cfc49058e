"""Packs Python objects into equal slots: the length, then the object if it fits.

Small objects thus need one message.
"""

import pickle
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

SLOT = 256
"""Bytes of a slot in the first message."""
BROADCAST_SLOT = 2**13
"""Bytes of a slot that only one rank sends: such a message takes about as long as one of `SLOT`."""

EAGER_SLOT = 2**11
"""Bytes of a slot that MPI libraries send within a host at once, without a wait for its
receiver."""

_LENGTH = 8


def pack(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def make_slot(packed: bytes, size: int) -> bytes:
    """Return a slot of ``size`` bytes with a packed object, or its length alone if it is larger."""
    slot = len(packed).to_bytes(_LENGTH, "little")
    if len(packed) <= size - _LENGTH:
        slot += packed
    return slot.ljust(size, b"\0")


def find_size(slots: bytes | bytearray, size: int) -> int:
    """Return the slot size that the longest object in ``slots`` needs."""
    lengths = (slots[start : start + _LENGTH] for start in range(0, len(slots), size))
    return max(int.from_bytes(length, "little") for length in lengths) + _LENGTH


def unpack(slots: bytes | bytearray, size: int) -> list[Any]:
    return [
        pickle.loads(memoryview(slots)[start + _LENGTH : start + size])
        for start in range(0, len(slots), size)
    ]


def split(packed: np.ndarray, lengths: Sequence[int]) -> list[Any]:
    """Return the objects whose bytes follow each other, ``lengths[n]`` of object n."""
    ends = accumulate(lengths)
    return [
        pickle.loads(packed[end - length : end].data)
        for length, end in zip(lengths, ends, strict=True)
    ]
