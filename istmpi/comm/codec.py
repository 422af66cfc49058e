"""Codecs send float32 values in fewer bits.

They are pure functions of values, scales, a key and positions.

`Bfloat16` and `Int8` round at random, so that on average a value arrives unchanged. Rounding to
nearest would lose small changes. A decoded value can be encoded again without change, unless its
scale has grown.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

EXACT = "exact"
BFLOAT16 = "bfloat16"
INT8 = "int8"
RUN = 256
"""The number of consecutive values that share a scale: a run."""

_LARGEST = 127
_BIAS = 127
_NO_NUMBER = 255
"""The exponent byte of a scale whose values are not all finite. All values of such a scale arrive
as NaN."""
_AT_ONCE = 2**17
"""Values computed at a time, so that temporary arrays stay in the processor's cache."""
# 2**32 divided by the golden ratio: its multiples are far apart, as in Fibonacci hashing.
_STEP = np.uint32(0x9E3779B1)
_LOW = 0xFFFFFFFF

Places = np.ndarray | range
"""Positions of values. Each position has its own random rounding."""


class Scales:
    """The scales of flat values.

    Run i has ``counts[i]`` values, and ``coded[i]`` is the exponent byte of its scale.
    """

    def __init__(self, coded: np.ndarray, counts: np.ndarray):
        self.coded = coded
        self._counts = counts
        self._ends = np.cumsum(counts)

    def by_value(self, at: slice, inverse: bool = False) -> np.ndarray:
        """Return the scale of each value in the slice, or its exact inverse: float32."""
        first, last = self._ends.searchsorted((at.start, at.stop - 1), "right").tolist()
        counts = self._counts[first : last + 1].copy()
        powers = scales(self.coded[first : last + 1])
        if inverse:
            powers = 1 / powers
        # The slice may begin and end within a run.
        counts[0] -= at.start - (self._ends[first] - self._counts[first])
        counts[-1] -= self._ends[last] - at.stop
        return powers.repeat(counts)


@dataclass(frozen=True)
class Wire:
    """The coding of a transfer.

    ``kind`` is the setting method.wire, ``key`` the key of the random roundings.
    """

    kind: str
    key: int
    settles: bool = False
    """True if the sender replaces its own values by the rounded values that it sends."""


class Codec(Protocol):
    """A form in which flat values travel as bytes. Every codec has three methods.

    The codecs in `CODECS` also encode blocks of tensors (`BlockForm`).
    """

    def nbytes(self, elements: int) -> int:
        """Return the bytes of ``elements`` values that are encoded together."""

    def encode(self, values: np.ndarray, key: int) -> np.ndarray:
        """Return flat values as bytes, uint8. ``key`` decides their random roundings."""

    def decode(self, coded: np.ndarray, elements: int) -> np.ndarray:
        """Return the ``elements`` float32 values that `encode` made into ``coded``."""


class BlockForm(Codec, Protocol):
    """A codec that the setting method.wire may name.

    A new codec is a class here, with a name in `CODECS`. Its `encode` also takes ``start``: the
    position of the first value. Scales are those of `exponents`.
    """

    itemsize: int
    """Whole bytes of a value, without its scale."""
    scaled: bool
    """True if the values of a block share scales."""
    for_all: bool
    """True if optimizer slots and tensors of one axis travel in this form; otherwise they travel as
    bfloat16."""

    def round(
        self, values: np.ndarray, key: int, places: Places, scales: Scales | None
    ) -> np.ndarray:
        """Return values as bytes.

        ``places``: the values' positions among all values that ``key`` rounds. ``scales``: not None
        if the codec is `scaled`.
        """

    def values(self, coded: np.ndarray, scales: Scales | None) -> np.ndarray:
        """Return the float32 values that `round` made into bytes."""


class Bfloat16:
    """The upper half of each float32, rounded up with the probability that its lower half gives."""

    itemsize = 2
    scaled = False
    for_all = True

    def nbytes(self, elements: int) -> int:
        return 2 * elements

    def encode(self, values: np.ndarray, key: int, start: int = 0) -> np.ndarray:
        return self.round(values, key, range(start, start + len(values)))

    def decode(self, coded: np.ndarray, elements: int) -> np.ndarray:
        return self.values(coded)

    def round(
        self, values: np.ndarray, key: int, places: Places, scales: Scales | None = None
    ) -> np.ndarray:
        coded = np.empty(len(values), np.uint16)
        for at, noise in _noises(key, places):
            bits = values[at].view(np.uint32)
            # 16 random bits are added to the lower half: their carry rounds the upper half up.
            noise >>= np.uint32(16)
            noise += bits
            noise >>= np.uint32(16)
            coded[at] = noise
            # Rounding would make infinity or zero of some NaNs.
            special = ~np.isfinite(values[at])
            if special.any():
                quiet = np.where(bits[special] & np.uint32(0x7FFFFF), np.uint32(0x40), np.uint32(0))
                coded[at][special] = (bits[special] >> np.uint32(16)) | quiet
        return coded.view(np.uint8)

    def values(self, coded: np.ndarray, scales: Scales | None = None) -> np.ndarray:
        return (coded.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


class Int8:
    """Whole multiples of a scale, from -127 to 127, rounded up or down at random.

    The bytes of `encode` begin with the scales, one for each `RUN` of values (`exponents`).
    """

    itemsize = 1
    scaled = True
    for_all = False

    def nbytes(self, elements: int) -> int:
        # A byte for each value, and one for each run's scale: the last run may be shorter.
        return elements + -(-elements // RUN)

    def encode(self, values: np.ndarray, key: int, start: int = 0) -> np.ndarray:
        if not len(values):
            return np.empty(0, np.uint8)
        runs = exponents(np.maximum.reduceat(np.abs(values), np.arange(0, len(values), RUN)))
        by_run = Scales(runs, np.full(len(runs), RUN))
        return np.append(runs, self.round(values, key, range(start, start + len(values)), by_run))

    def decode(self, coded: np.ndarray, elements: int) -> np.ndarray:
        # A run takes a byte for each value and one for its scale; rounded up for the last run.
        runs = -(-len(coded) // (RUN + 1))
        return self.values(coded[runs:], Scales(coded[:runs], np.full(runs, RUN)))

    def round(
        self, values: np.ndarray, key: int, places: Places, scales: Scales | None
    ) -> np.ndarray:
        assert scales is not None
        coded = np.empty(len(values), np.int8)
        no_number = (scales.coded == _NO_NUMBER).any()
        for at, noise in _noises(key, places):
            # 24 bits are as many as a float32 holds exactly.
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

    def values(self, coded: np.ndarray, scales: Scales | None) -> np.ndarray:
        assert scales is not None
        values = coded.view(np.int8).astype(np.float32)
        for at in _parts(len(coded)):
            values[at] *= scales.by_value(at)
        return values


CODECS: dict[str, BlockForm] = {BFLOAT16: Bfloat16(), INT8: Int8()}


def value_bytes(form: str, itemsize: int) -> int:
    """Return the bytes of a value without its scale. ``itemsize``: the bytes of an exact value."""
    if form == EXACT:
        return itemsize
    return CODECS[form].itemsize


def count_encoded_bytes(elements: int, form: str, itemsize: int) -> int:
    """Return the bytes of ``elements`` values that are encoded together, with their scales."""
    if form == EXACT:
        return elements * itemsize
    return CODECS[form].nbytes(elements)


def exponents(largest: np.ndarray) -> np.ndarray:
    """Return each scale's float32 exponent byte.

    The scale is the least power of two with largest / scale <= 127. ``largest`` has the largest
    absolute value that each scale covers; `_NO_NUMBER` if it is not finite.
    """
    mantissa, exponent = np.frexp(largest.astype(np.float32))
    # The mantissa is from 0.5 to 1: divided by 2**(exponent - 7), ``largest`` is below 128, and
    # above 127 only if the mantissa is above 127/128.
    exponent = exponent - 7 + (mantissa > _LARGEST / 128)
    # decision 18: with powers of two, values that were decoded are encoded exactly.
    coded = np.clip(exponent + _BIAS, 1, _NO_NUMBER - 1).astype(np.uint8)
    return np.where(np.isfinite(largest), coded, _NO_NUMBER).astype(np.uint8)


def scales(coded: np.ndarray) -> np.ndarray:
    """Return the powers of two for exponent bytes, as float32: NaN for `_NO_NUMBER`."""
    # A float32 whose other bits are 0 is a power of two.
    powers = (coded.astype(np.uint32) << np.uint32(23)).view(np.float32)
    return np.where(coded == _NO_NUMBER, np.float32(np.nan), powers)


def _parts(length: int) -> list[slice]:
    """Return the slices of ``length`` values, each of `_AT_ONCE` values or fewer."""
    return [slice(start, min(start + _AT_ONCE, length)) for start in range(0, length, _AT_ONCE)]


def _noises(key: int, places: Places) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield slices of ``places``, with 32 random bits for each place in the slice.

    The next pair overwrites the bits. The bits are a hash of key and place in two rounds, like the
    end of MurmurHash3. `istmpi.rng` would take longer than the rest of the codec.
    """
    memory, folded = np.empty((2, min(len(places), _AT_ONCE)), np.uint32)
    steps = np.arange(len(memory), dtype=np.uint32) * _STEP
    for at in _parts(len(places)):
        part = places[at]
        bits = memory[: len(part)]
        fold = folded[: len(part)]
        if isinstance(part, range) and part.stop < 2**32:
            np.add(steps[: len(part)], np.uint32(part.start * int(_STEP) & _LOW), out=bits)
        else:
            if isinstance(part, range):
                part = np.arange(part.start, part.stop)
            np.multiply(part.astype(np.uint32), _STEP, out=bits)
            bits ^= (part >> 32).astype(np.uint32)
        bits += np.uint32(key & _LOW)
        bits ^= np.right_shift(bits, np.uint32(16), out=fold)
        bits *= np.uint32(0x7FEB352D)
        bits ^= np.right_shift(bits, np.uint32(15), out=fold)
        bits ^= np.uint32(key >> 32 & _LOW)
        bits *= np.uint32(0x846CA68B)
        bits ^= np.right_shift(bits, np.uint32(16), out=fold)
        yield at, bits
