"""Packs Python objects into equal slots: the length, then the object if it fits. Small objects need
one message."""

import pickle
from typing import Any

SLOT = 256
"""Bytes of a slot in the first message."""

_LENGTH = 8


def packed(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def slot(packed: bytes, size: int) -> bytes:
    """Return a slot of ``size`` bytes with a packed object, or with its length alone if it does not
    fit."""
    fits = packed if len(packed) <= size - _LENGTH else b""
    return (len(packed).to_bytes(_LENGTH, "little") + fits).ljust(size, b"\0")


def needed(slots: bytes | bytearray, size: int) -> int:
    """Return the slot size that the longest object in ``slots`` needs."""
    lengths = (slots[start : start + _LENGTH] for start in range(0, len(slots), size))
    return max(int.from_bytes(length, "little") for length in lengths) + _LENGTH


def unpacked(slots: bytes | bytearray, size: int) -> list[Any]:
    return [
        pickle.loads(memoryview(slots)[start + _LENGTH : start + size])
        for start in range(0, len(slots), size)
    ]
