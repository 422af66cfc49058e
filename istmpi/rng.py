"""Random numbers as a pure function of their purpose.

Every draw hashes its purpose and its position. So any rank can compute any draw of any round
without state, and two machines with different library versions agree bit for bit. The mixer is the
finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

import hashlib

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


def key(*purpose: int | str) -> int:
    """Return a 64-bit key for a purpose such as ``key(seed, "deal", "hidden1", round)``."""
    # With types, and a separator that no text has: no two purposes share a key.
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in purpose)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def bits(stream: int, start: int, count: int) -> np.ndarray:
    """Return 64 random bits for each of the positions ``start .. start + count - 1``.

    They are ``[count]`` uint64.
    """
    return _hash(stream, np.arange(start, start + count, dtype=np.uint64))


def uniform(stream: int, start: int, count: int) -> np.ndarray:
    """Return uniform numbers in [0, 1), one for each position of `bits`.

    They are ``[count]`` float64, multiples of 2**-53.
    """
    return _scale(bits(stream, start, count))


def uniform_at(stream: int, positions: np.ndarray) -> np.ndarray:
    """Return the numbers of `uniform` at some positions: ``[count]`` float64."""
    return _scale(_hash(stream, positions.astype(np.uint64)))


def permutation(length: int, stream: int) -> np.ndarray:
    """Return a uniformly random order of ``0 .. length - 1``: ``[length]`` int64."""
    return np.argsort(bits(stream, 0, length))  # no two are equal: the mixer is a bijection


def _hash(stream: int, positions: np.ndarray) -> np.ndarray:
    """Return 64 random bits for each of the ``positions`` (uint64), which it overwrites."""
    positions *= np.uint64(_GOLDEN)
    positions += np.uint64(stream & _MASK)
    return _mix(positions)


def _scale(drawn: np.ndarray) -> np.ndarray:
    # A float64 holds 53 bits exactly.
    return (drawn >> np.uint64(11)) * 2.0**-53


def _mix(z: np.ndarray) -> np.ndarray:
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z
