"""Codecs: how float32 values travel in fewer bits. Pure functions of values, scales, a key and positions.

Both codecs here round at random, so that a value arrives as it was on average: what a few steps changed of a weight is
often less than half of the last bit. Decoded values are encoded exactly, as long as their scale does not grow.
"""

from collections.abc import Iterator
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
_AT_ONCE = 2**17
"""Values whose temporary arrays stay in a processor's cache."""
_ODD, _LOW = np.uint32(0x9E3779B1), 0xFFFFFFFF

Places = np.ndarray | range
"""Positions of values, by which their rounding differs."""


class Scales:
    """Runs of values that share a scale: its exponent's byte and their number."""

    def __init__(self, coded: np.ndarray, counts: np.ndarray):
        self.coded, self._counts, self._ends = coded, counts, np.cumsum(counts)

    def by_value(self, at: slice, inverse: bool = False) -> np.ndarray:
        """The scale of each of these values, or its exact inverse."""
        first, last = self._ends.searchsorted((at.start, at.stop - 1), "right").tolist()
        counts, powers = self._counts[first : last + 1].copy(), scales(self.coded[first : last + 1])
        counts[0] -= at.start - (self._ends[first] - self._counts[first])
        counts[-1] -= self._ends[last] - at.stop
        return (1 / powers if inverse else powers).repeat(counts)


@dataclass(frozen=True)
class Wire:
    """The coding of a transfer's values: method.wire, and the key of its roundings."""

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

    def round(self, values: np.ndarray, key: int, places: Places, scales: Scales | None) -> np.ndarray:
        """Values, at these positions of what is rounded with this key, as bytes."""

    def values(self, coded: np.ndarray, scales: Scales | None) -> np.ndarray:
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

    def round(self, values: np.ndarray, key: int, places: Places, scales: Scales | None = None) -> np.ndarray:
        coded = np.empty(len(values), np.uint16)
        for at, noise in _noises(key, places):
            bits = values[at].view(np.uint32)
            noise >>= np.uint32(16)
            noise += bits
            noise >>= np.uint32(16)
            coded[at] = noise
            special = ~np.isfinite(values[at])
            if special.any():
                quiet = np.where(bits[special] & np.uint32(0x7FFFFF), np.uint32(0x40), np.uint32(0))
                coded[at][special] = (bits[special] >> np.uint32(16)) | quiet
        return coded.view(np.uint8)

    def values(self, coded: np.ndarray, scales: Scales | None = None) -> np.ndarray:
        return (coded.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


class Int8:
    """Multiples of scales, the next one up or down at random; scales come first, as `exponents`, one for each `RUN`."""

    itemsize, scaled, for_all = 1, True, False

    def nbytes(self, elements: int) -> int:
        return elements + -(-elements // RUN)

    def encode(self, values: np.ndarray, key: int, start: int = 0) -> np.ndarray:
        if not len(values):
            return np.empty(0, np.uint8)
        runs = exponents(np.maximum.reduceat(np.abs(values), np.arange(0, len(values), RUN)))
        by_run = Scales(runs, np.full(len(runs), RUN))
        return np.append(runs, self.round(values, key, range(start, start + len(values)), by_run))

    def decode(self, coded: np.ndarray, elements: int) -> np.ndarray:
        runs = -(-len(coded) // (RUN + 1))
        return self.values(coded[runs:], Scales(coded[:runs], np.full(runs, RUN)))

    def round(self, values: np.ndarray, key: int, places: Places, scales: Scales) -> np.ndarray:
        coded = np.empty(len(values), np.int8)
        no_number = (scales.coded == _NO_NUMBER).any()
        for at, noise in _noises(key, places):
            noise >>= np.uint32(8)
            odds = noise.view(np.int32).astype(np.float32)
            odds *= np.float32(2**-24)
            with np.errstate(invalid="ignore"):
                exact = values[at] * scales.by_value(at, inverse=True)
            if no_number:
                exact[np.isnan(exact)] = 0
            below = np.floor(exact)
            coded[at] = below
            exact -= below
            coded[at] += (exact > odds).view(np.int8)
        return coded.view(np.uint8)

    def values(self, coded: np.ndarray, scales: Scales) -> np.ndarray:
        values = coded.view(np.int8).astype(np.float32)
        for at in _parts(len(coded)):
            values[at] *= scales.by_value(at)
        return values


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
    return [slice(start, min(start + _AT_ONCE, length)) for start in range(0, length, _AT_ONCE)]


def _noises(key: int, places: Places) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield parts and 32 random bits for each place: two rounds of multiplying and folding, as MurmurHash3 ends.

    The 64-bit draws of `istmpi.rng` would cost more than all the rest. The next part overwrites the bits.
    """
    memory, folded = np.empty((2, min(len(places), _AT_ONCE)), np.uint32)
    steps = np.arange(len(memory), dtype=np.uint32) * _ODD
    for at in _parts(len(places)):
        part = places[at]
        bits, fold = memory[: len(part)], folded[: len(part)]
        if isinstance(part, range) and part.stop < 2**32:
            np.add(steps[: len(part)], np.uint32(part.start * int(_ODD) & _LOW), out=bits)
        else:
            part = np.arange(part.start, part.stop) if isinstance(part, range) else part
            np.multiply(part.astype(np.uint32), _ODD, out=bits)
            bits ^= (part >> 32).astype(np.uint32)
        bits += np.uint32(key & _LOW)
        bits ^= np.right_shift(bits, np.uint32(16), out=fold)
        bits *= np.uint32(0x7FEB352D)
        bits ^= np.right_shift(bits, np.uint32(15), out=fold)
        bits ^= np.uint32(key >> 32 & _LOW)
        bits *= np.uint32(0x846CA68B)
        bits ^= np.right_shift(bits, np.uint32(16), out=fold)
        yield at, bits
