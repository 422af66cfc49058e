"""Values as floats of 4 bits, E3M0: a sign and three bits of exponent, two values in a byte.

    ceil(n / 1024) float32     the largest magnitude of each block of 1,024 values
    ceil(n / 2) bytes          codes, the first value in the low half: 8 for minus, and 0 for zero or 1 to 7

A magnitude of code c is the block's largest times 2**(c - 7), so the largest is itself; every value becomes the nearest
that there is. Coding what was decoded changes nothing. Where a block has a value that is not finite, all become NaN.
"""

import numpy as np
import torch

from istmpi.engine.packed_sizes import BLOCK, float4_bytes

_LEVELS = 7
_LEAST = 2.0**-_LEVELS
"""Half of the least magnitude that there is, relative to the block's largest; smaller values become zero."""
_MAGNITUDES = torch.tensor([0.0, *(2.0**-power for power in reversed(range(_LEVELS)))])
_FACTORS = torch.cat([_MAGNITUDES, -_MAGNITUDES])


def encode(values: torch.Tensor) -> torch.Tensor:
    count = values.numel()
    blocked = torch.zeros(-(-count // BLOCK), BLOCK)
    blocked.view(-1)[:count] = values
    largest = blocked.abs().amax(1)
    relative = (blocked.abs() / largest[:, None]).nan_to_num_(0.0)
    mantissa, exponent = torch.frexp(relative)
    codes = (exponent + (mantissa >= 0.75) + (_LEVELS - 1)).clamp_(1, _LEVELS).to(torch.uint8)
    codes = torch.where(relative >= _LEAST, codes | (blocked < 0).to(torch.uint8) << 3, 0).view(-1)
    codes = codes[: count + count % 2]
    return torch.cat([largest.view(torch.uint8), codes[0::2] | codes[1::2] << 4])


def decode(packed: torch.Tensor, count: int) -> torch.Tensor:
    """The first ``count`` values of their bytes, float32."""
    blocks = -(-count // BLOCK)
    largest = packed[: 4 * blocks].clone().view(torch.float32)
    pairs = packed[4 * blocks :]
    codes = torch.stack([pairs & 15, pairs >> 4], 1).view(-1)[:count]
    return _FACTORS[codes.long()] * largest.repeat_interleave(BLOCK)[:count]


class Float4:
    """The codec (`istmpi.comm.codec.Codec`); nothing is rounded at random."""

    def nbytes(self, elements: int) -> int:
        return float4_bytes(elements)

    def encode(self, values: np.ndarray, key: int) -> np.ndarray:
        return encode(torch.from_numpy(values)).numpy()

    def decode(self, coded: np.ndarray, elements: int) -> np.ndarray:
        return decode(torch.from_numpy(coded), elements).numpy()


CODEC = Float4()
