"""Codecs: how float32 values travel in fewer bits. Pure functions of values, scales, a key and positions.

Both codecs here round at random, so that a value arrives as it was on average: what a few steps changed of a weight is
often less than half of the last bit. Decoded values are encoded exactly, as long as their scale does not grow.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

EXACT, BFLOAT16, INT8 = "exact", "bfloat16", "int8"
RUN = 256
"""Values that share a scale where flat values are encoded."""

_LARGEST = 127
_BIAS = 127
_NO_NUMBER = 255
"""The exponent's byte where some value is not finite: all that share it arrive as NaN."""
_AT_ONCE = 2**16
"""Values whose temporary arrays stay in a processor's cache."""

Places = np.ndarray | range
"""Positions of values, by which their rounding differs."""


@dataclass(frozen=True)
class Wire:
    """The coding of a transfer's values: the setting method.wire, and the key of its roundings."""

    kind: str
    key: int
    settles: bool = False
    """The sender's own values become what arrives."""


class Codec(Protocol):
    """A form in which flat values travel as bytes; every codec has these three methods.

    Those of `CODECS` encode blocks of tensors as well: see `BlockForm`.
    """

    def nbytes(self, elements: int) -> int:
        """Bytes of so many values that are encoded together."""

    def encode(self, values: np.ndarray, key: int) -> np.ndarray:
        """The bytes of flat values; ``key``: of their random roundings."""

    def decode(self, coded: np.ndarray, elements: int) -> np.ndarray:
        """The so many values of what `encode` made."""


class BlockForm(Codec, Protocol):
    """A value of method.wire. A new one is a class here, with its name in `CODECS`."""

    itemsize: int
    """Bytes of a value, without its scale."""
    scaled: bool
    """Values of a block share scales."""
    for_all: bool
    """Slots, and tensors of one axis, travel in this form; else in bfloat16."""

    def round(self, values: np.ndarray, key: int, places: Places, scales: np.ndarray | None) -> np.ndarray:
        """Values, at these positions of what is rounded with this key, as bytes."""

    def values(self, coded: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
        """The float32 values of what `round` made."""


class Bfloat16:
    """The upper halves of float32 values, one more with the odds of the lower half."""

    itemsize, scaled, for_all = 2, False, True

    def nbytes(self, elements: int) -> int:
        return 2 * elements

    def encode(self, values: np.ndarray, key: int, start: int = 0) -> np.ndarray:
        return self.round(values, key, range(start, start + len(values)))

    def decode(self, coded: np.ndarray, elements: int) -> np.ndarray:
        return self.values(coded)

    def round(self, values: np.ndarray, key: int, places: Places, scales: np.ndarray | None = None) -> np.ndarray:
        coded = np.empty(len(values), np.uint16)
        for at in _parts(len(values)):
            bits = values[at].view(np.uint32)
            rounded = (bits + (_noise(key, places[at]) >> np.uint32(16))) >> np.uint32(16)
            special = (bits & np.uint32(0x7F800000)) == 0x7F800000
            if special.any():
                quiet = np.where((bits & np.uint32(0x7FFFFF)) == 0, 0, 0x40).astype(np.uint32)
                rounded = np.where(special, (bits >> np.uint32(16)) | quiet, rounded)
            coded[at] = rounded
        return coded.view(np.uint8)

    def values(self, coded: np.ndarray, scales: np.ndarray | None = None) -> np.ndarray:
        return (coded.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


class Int8:
    """Multiples of scales, the next one up or down at random; scales come first, as `exponents`, one for each `RUN`."""

    itemsize, scaled, for_all = 1, True, False

    def nbytes(self, elements: int) -> int:
        return elements + -(-elements // RUN)

    def encode(self, values: np.ndarray, key: int, start: int = 0) -> np.ndarray:
        runs = -(-len(values) // RUN)
        coded = np.empty(len(values) + runs, np.uint8)
        if runs:
            coded[:runs] = exponents(np.maximum.reduceat(np.abs(values), range(0, len(values), RUN)))
            by_value = scales(coded[:runs]).repeat(RUN)[: len(values)]
            coded[runs:] = self.round(values, key, range(start, start + len(values)), by_value)
        return coded

    def decode(self, coded: np.ndarray, elements: int) -> np.ndarray:
        runs = -(-len(coded) // (RUN + 1))
        return self.values(coded[runs:], scales(coded[:runs]).repeat(RUN)[: len(coded) - runs])

    def round(self, values: np.ndarray, key: int, places: Places, scales: np.ndarray) -> np.ndarray:
        coded = np.empty(len(values), np.int8)
        for at in _parts(len(values)):
            with np.errstate(invalid="ignore"):
                exact = values[at] / scales[at]
                below = np.floor(exact)
                up = (exact - below) > (_noise(key, places[at]) >> np.uint32(8)) * np.float32(2**-24)
                coded[at] = np.where(np.isnan(exact), 0, below + up)
        return coded.view(np.uint8)

    def values(self, coded: np.ndarray, scales: np.ndarray) -> np.ndarray:
        return coded.view(np.int8).astype(np.float32) * scales


CODECS: dict[str, BlockForm] = {BFLOAT16: Bfloat16(), INT8: Int8()}


def value_bytes(form: str, itemsize: int) -> int:
    """Bytes of a value without its scale; ``itemsize``: of a value that travels exactly."""
    return itemsize if form == EXACT else CODECS[form].itemsize


def encoded_bytes(elements: int, form: str, itemsize: int) -> int:
    """Bytes of so many values that are encoded together; ``itemsize``: of a value that travels exactly."""
    return elements * itemsize if form == EXACT else CODECS[form].nbytes(elements)


def exponents(largest: np.ndarray) -> np.ndarray:
    """The least powers of two by which absolute values up to these are at most 127, as their exponents' bytes."""
    mantissa, exponent = np.frexp(largest.astype(np.float32))
    exponent = exponent - 7 + (mantissa > _LARGEST / 128)
    coded = np.clip(exponent + _BIAS, 1, _NO_NUMBER - 1).astype(np.uint8)
    return np.where(np.isfinite(largest), coded, _NO_NUMBER).astype(np.uint8)


def scales(coded: np.ndarray) -> np.ndarray:
    """The powers of two of exponents' bytes: float32, NaN where there is none."""
    powers = (coded.astype(np.uint32) << np.uint32(23)).view(np.float32)
    return np.where(coded == _NO_NUMBER, np.float32(np.nan), powers)


def _parts(length: int) -> list[slice]:
    return [slice(start, start + _AT_ONCE) for start in range(0, length, _AT_ONCE)]


def _noise(key: int, places: Places) -> np.ndarray:
    """32 random bits for each position: two rounds of multiplying and folding, as MurmurHash3 ends.

    The 64-bit draws of `istmpi.rng` would cost more than all the rest, for every value of every transfer.
    """
    if isinstance(places, range):
        places = np.arange(places.start, places.stop)
    high = (places >> 32).astype(np.uint32)
    bits = places.astype(np.uint32)
    bits *= np.uint32(0x9E3779B1)
    bits ^= high
    bits += np.uint32(key & 0xFFFFFFFF)
    bits ^= bits >> np.uint32(16)
    bits *= np.uint32(0x7FEB352D)
    bits ^= bits >> np.uint32(15)
    bits ^= np.uint32(key >> 32 & 0xFFFFFFFF)
    bits *= np.uint32(0x846CA68B)
    bits ^= bits >> np.uint32(16)
    return bits
