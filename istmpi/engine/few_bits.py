"""Codecs of few bits: floats of 4 bits (E3M0), or only the largest of every 4,096 values, with
their places.

`Float4` codes a value as a sign and three bits of exponent. Two values share a byte.

    ceil(n / 1024) float32     the largest magnitude of each block of 1,024 values
    ceil(n / 2) bytes          codes, the first value in the low half: 0 for zero, or 1 to 7;
                               plus 8 for minus

A code c from 1 to 7 stands for the block's largest magnitude times 2**(c - 7), so the largest
magnitude is exact. Each value is rounded to the nearest code. If a value is not finite, all values
of its block become NaN.

`TopK`, for SparseLoCo, cuts each tensor into chunks of 4,096 values. A shorter last chunk sends
proportionally fewer values. A message has three parts, for chunk after chunk:

    12 bits for each sent value: its place in its chunk, ascending
    2 bits for each sent value: its group (low bit) and its sign (high bit)
    two bfloat16 for each chunk: the mean magnitude of each group

A chunk's sent values are in two groups: with magnitudes up to their mean (0), and with larger
magnitudes (1). Bytes are filled from their lowest bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from istmpi.engine.packed_sizes import BLOCK, CHUNK, float4_bytes, top_k_entries

_LEVELS = 7
_LEAST = 2.0**-_LEVELS
"""Half of the smallest code's magnitude, relative to the block's largest; smaller values become
zero."""
_MAGNITUDES = torch.tensor([0.0, *(2.0**-power for power in reversed(range(_LEVELS)))])
_FACTORS = torch.cat([_MAGNITUDES, -_MAGNITUDES])


class Float4:
    """A codec (`istmpi.comm.codec.Codec`) that rounds to nearest, without random numbers."""

    def nbytes(self, elements: int) -> int:
        return float4_bytes(elements)

    def encode(self, values: np.ndarray, key: int = 0) -> np.ndarray:
        count = len(values)
        blocked = torch.zeros(-(-count // BLOCK), BLOCK)
        blocked.view(-1)[:count] = torch.from_numpy(values)
        largest = blocked.abs().amax(1)
        # 0/0 in a block of zeros becomes 0. A block that is not finite decodes to NaN, as its
        # largest is not finite.
        relative = (blocked.abs() / largest[:, None]).nan_to_num_(0.0)
        # 0.75 is as far from 0.5 as from 1, the two nearest powers of two.
        mantissa, exponent = torch.frexp(relative)
        codes = (exponent + (mantissa >= 0.75) + (_LEVELS - 1)).clamp_(1, _LEVELS).to(torch.uint8)
        codes = torch.where(relative >= _LEAST, codes | (blocked < 0).to(torch.uint8) << 3, 0).view(
            -1
        )
        codes = codes[: count + count % 2]
        return torch.cat([largest.view(torch.uint8), codes[0::2] | codes[1::2] << 4]).numpy()

    def decode(self, coded: np.ndarray, elements: int) -> np.ndarray:
        scales = 4 * -(-elements // BLOCK)
        largest = torch.from_numpy(coded[:scales].copy().view(np.float32))
        pairs = torch.from_numpy(coded[scales:])
        codes = torch.stack([pairs & 15, pairs >> 4], 1).view(-1)[:elements]
        return (_FACTORS[codes.long()] * largest.repeat_interleave(BLOCK)[:elements]).numpy()


_BITS = torch.arange(0, 8, 2, dtype=torch.uint8)


@dataclass(frozen=True)
class TopK:
    """A codec that sends the ``top`` largest magnitudes of every 4,096 values of flat tensors with
    ``sizes`` elements.

    `istmpi.engine.packed_sizes.top_k_bytes` gives the length of its messages.
    """

    top: int
    sizes: tuple[int, ...]

    @property
    def kept(self) -> list[int]:
        """The number of sent values of each chunk."""
        counts = []
        for size in self.sizes:
            for start in range(0, size, CHUNK):
                # A shorter last chunk sends the same fraction of its values, rounded up.
                counts.append(-(-self.top * min(CHUNK, size - start) // CHUNK))
        return counts

    def encode(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a message: places, codes and levels of the sent values."""
        places: list[torch.Tensor] = []
        codes: list[torch.Tensor] = []
        levels: list[torch.Tensor] = []
        for tensor in tensors:
            for places_in_chunk, values in self._chosen(tensor):
                codes_of_values, levels_of_chunk = _in_two_bits(values)
                places.append(places_in_chunk.reshape(-1))
                codes.append(codes_of_values.reshape(-1))
                levels.append(levels_of_chunk)
        packed_places = _pack_places(torch.cat(places))
        packed_codes = _pack_codes(torch.cat(codes))
        packed_levels = torch.cat(levels).view(torch.uint8).view(-1)
        return torch.cat([packed_places, packed_codes, packed_levels])

    def decode(self, packed: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the places of the sent values in the concatenation of all flat tensors, and the
        values."""
        kept = torch.tensor(self.kept)
        starts: list[int] = []
        for first, size in zip(accumulate(self.sizes, initial=0), self.sizes):
            starts += range(first, first + size, CHUNK)
        entries = top_k_entries(self.top, self.sizes)
        # A place takes 12 bits, a code 2.
        end_of_places = -(-3 * entries // 2)
        end_of_codes = end_of_places - (-entries // 4)
        places = _unpack_places(packed[:end_of_places], entries)
        places = places + torch.tensor(starts).repeat_interleave(kept)
        codes = (packed[end_of_places:end_of_codes, None] >> _BITS & 3).view(-1)[:entries]
        # A copy, because the bytes of bfloat16 must begin at an even address.
        levels = packed[end_of_codes:].clone().view(torch.bfloat16).view(-1, 2)
        levels = levels.to(dtype).repeat_interleave(kept, 0)
        magnitudes = torch.where(codes & 1 > 0, levels[:, 1], levels[:, 0])
        return places, torch.where(codes & 2 > 0, -magnitudes, magnitudes)

    def _chosen(self, values: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return (places, values), both ``[chunk, value]``, of the full chunks, then of a shorter
        last chunk."""
        whole = values.numel() // CHUNK * CHUNK
        chosen = []
        for part in (values[:whole].view(-1, CHUNK), values[whole:].view(1, -1)):
            if part.numel():
                count = -(-self.top * part.shape[1] // CHUNK)
                # NaN counts as the largest magnitude, so it is sent.
                magnitudes = part.abs().nan_to_num_(torch.inf)
                least = magnitudes.topk(count, dim=1).values[:, -1:]
                above = magnitudes > least
                tied = magnitudes == least
                # The first of equal magnitudes are sent.
                order = tied.cumsum(1, dtype=torch.int16)
                tied &= order <= count - above.sum(1, keepdim=True)
                places = (above | tied).nonzero()[:, 1].view(-1, count)
                chosen.append((places, part.gather(1, places)))
        return chosen


def _in_two_bits(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of chunks' ``values``, ``[chunk, value]`` uint8, and the mean magnitudes of
    both groups, ``[chunk, 2]`` bfloat16."""
    magnitudes = values.abs()
    mean = magnitudes.mean(1, keepdim=True)
    above = magnitudes > mean
    # The group of larger magnitudes is empty if all are equal.
    high_count = above.sum(1).clamp(min=1)
    low_count = (~above).sum(1).clamp(min=1)
    low = torch.where(above, 0, magnitudes).sum(1) / low_count
    high = torch.where(above, magnitudes, 0).sum(1) / high_count
    codes = above.to(torch.uint8) | (values < 0).to(torch.uint8) << 1
    return codes, torch.stack([low, high], 1).to(torch.bfloat16)


def _pack_places(places: torch.Tensor) -> torch.Tensor:
    """Pack places of 12 bits, two in three bytes: ``[ceil(3n/2)]`` uint8."""
    count = len(places)
    first, second = torch.nn.functional.pad(places, (0, count % 2)).view(-1, 2).unbind(1)
    packed = (
        torch.stack([first & 255, first >> 8 | (second & 15) << 4, second >> 4], 1)
        .to(torch.uint8)
        .view(-1)
    )
    return packed[: -(-3 * count // 2)]


def _unpack_places(packed: torch.Tensor, count: int) -> torch.Tensor:
    low, middle, high = (
        torch.nn.functional.pad(packed, (0, -len(packed) % 3)).long().view(-1, 3).unbind(1)
    )
    return torch.stack([low | (middle & 15) << 8, middle >> 4 | high << 4], 1).view(-1)[:count]


def _pack_codes(codes: torch.Tensor) -> torch.Tensor:
    fours = torch.nn.functional.pad(codes, (0, -len(codes) % 4)).view(-1, 4)
    return (fours << _BITS).sum(1, dtype=torch.uint8)
