"""How float32 values travel in fewer bits: pure functions of values, scales, a key and positions.

Both forms round at random, so that a value arrives as it was on average: weights travel whole, and what a few steps
changed of them is often less than half of the last bit.

    bfloat16    the upper 16 bits
    int8        a whole number from -127 to 127, times a power of two that some values share: a byte of its exponent

What has been decoded is encoded exactly, whatever the key, as long as its scale does not grow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

EXACT, BFLOAT16, INT8 = "exact", "bfloat16", "int8"
FORMS = {EXACT: 0, BFLOAT16: 2, INT8: 1}
"""Bytes of a value in each form, its scale left out; one that travels exactly has as many as it has."""

RUN = 256
"""Values that share a scale in a chunk of an all-reduce."""

_MOST = 127
_BIAS = 127
_NO_NUMBER = 255
"""The exponent's byte where some value is not finite: all that share it arrive as NaN."""
_AT_ONCE = 2**16
"""Values whose temporary arrays stay in a processor's cache."""

Places = np.ndarray | range
"""Positions of values, by which their rounding differs."""


@dataclass(frozen=True)
class Wire:
    """How a transfer's values travel: the setting method.wire, and the key of its roundings."""

    kind: str
    key: int
    settles: bool = False
    """The sender's own values become what arrives."""


def encode(values: np.ndarray, form: str, key: int, start: int = 0) -> np.ndarray:
    """Flat float32 values as bytes: their exponents first, one for each run of `RUN`, where they have any."""
    places = range(start, start + len(values))
    if form == BFLOAT16:
        return to_bfloat16(values, key, places).view(np.uint8)
    runs = -(-len(values) // RUN)
    coded = np.empty(len(values) + runs, np.uint8)
    if runs:
        coded[:runs] = exponents(np.maximum.reduceat(np.abs(values), range(0, len(values), RUN)))
        to_int8(values, scales(coded[:runs]).repeat(RUN)[: len(values)], key, places, coded[runs:].view(np.int8))
    return coded


def decode(coded: np.ndarray, form: str) -> np.ndarray:
    """The float32 values of what `encode` made."""
    if form == BFLOAT16:
        return from_bfloat16(coded.view(np.uint16))
    runs = -(-len(coded) // (RUN + 1))
    values = coded[runs:].view(np.int8)
    return from_int8(values, scales(coded[:runs]).repeat(RUN)[: len(values)])


def encoded_bytes(elements: int, form: str, itemsize: int) -> int:
    """Bytes of so many values that are encoded together."""
    if form == EXACT:
        return elements * itemsize
    return elements * FORMS[form] + (-(-elements // RUN) if form == INT8 else 0)


@dataclass(frozen=True)
class Codec:
    """Flat float32 values as bytes, so many for so many values."""

    nbytes: Callable[[int], int]
    encode: Callable[[np.ndarray, int], np.ndarray]
    """Of values and the key of their roundings."""
    decode: Callable[[np.ndarray, int], np.ndarray]
    """Of bytes and the number of their values."""


def _codec(form: str) -> Codec:
    return Codec(
        nbytes=partial(encoded_bytes, form=form, itemsize=0),
        encode=lambda values, key: encode(values, form, key),
        decode=lambda coded, _: decode(coded, form),
    )


CODECS = {form: _codec(form) for form in (BFLOAT16, INT8)}


def to_bfloat16(values: np.ndarray, key: int, places: Places) -> np.ndarray:
    """The upper halves of flat float32 values, one more with the odds of the lower half: ``[value]`` uint16."""
    coded = np.empty(len(values), np.uint16)
    for at in _parts(len(values)):
        bits = values[at].view(np.uint32)
        rounded = (bits + (_noise(key, places[at]) >> np.uint32(16))) >> np.uint32(16)
        special = (bits & np.uint32(0x7F800000)) == 0x7F800000
        if special.any():
            number = (bits & np.uint32(0x7FFFFF)) == 0
            rounded = np.where(special, (bits >> np.uint32(16)) | np.where(number, 0, 0x40).astype(np.uint32), rounded)
        coded[at] = rounded
    return coded


def from_bfloat16(coded: np.ndarray) -> np.ndarray:
    """The float32 values of their upper halves."""
    return (coded.astype(np.uint32) << np.uint32(16)).view(np.float32)


def exponents(largest: np.ndarray) -> np.ndarray:
    """The least powers of two by which absolute values up to these are at most 127, as their exponents' bytes."""
    mantissa, exponent = np.frexp(largest.astype(np.float32))
    exponent = exponent - 7 + (mantissa > _MOST / 128)
    coded = np.clip(exponent + _BIAS, 1, _NO_NUMBER - 1).astype(np.uint8)
    return np.where(np.isfinite(largest), coded, _NO_NUMBER).astype(np.uint8)


def scales(coded: np.ndarray) -> np.ndarray:
    """The powers of two of exponents' bytes: float32, NaN where there is none."""
    powers = (coded.astype(np.uint32) << np.uint32(23)).view(np.float32)
    return np.where(coded == _NO_NUMBER, np.float32(np.nan), powers)


def to_int8(
    values: np.ndarray, scaled_by: np.ndarray, key: int, places: Places, out: np.ndarray | None = None
) -> np.ndarray:
    """Flat float32 values as multiples of their scales, the next one up or down at random: ``[value]`` int8."""
    coded = np.empty(len(values), np.int8) if out is None else out
    for at in _parts(len(values)):
        with np.errstate(invalid="ignore"):
            wanted = values[at] / scaled_by[at]
            below = np.floor(wanted)
            up = (wanted - below) > (_noise(key, places[at]) >> np.uint32(8)) * np.float32(2**-24)
            coded[at] = np.where(np.isnan(wanted), 0, below + up)
    return coded


def from_int8(coded: np.ndarray, scaled_by: np.ndarray) -> np.ndarray:
    """The float32 values of multiples of their scales."""
    return coded.astype(np.float32) * scaled_by


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
