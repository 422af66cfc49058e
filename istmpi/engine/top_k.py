"""The largest of every 4,096 values with their places, perhaps as 2 bits each: SparseLoCo's messages.

Each tensor is cut into chunks of 4,096 values by itself; its last chunk may be shorter, and sends in proportion. Of all
chunks one after the other:

    12 bits for each value that is sent: its place in its chunk, rising
    its values as they are; or 2 bits for each, and for each chunk two bfloat16

The two bfloat16 are the mean magnitude of those of the chunk's values that are at most their mean, and of the others; 2
bits say which, and the sign. Each kind fills whole bytes, lowest bits first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from istmpi.engine.packed_sizes import CHUNK, top_k_entries

_BITS = torch.arange(0, 8, 2, dtype=torch.uint8)


@dataclass(frozen=True)
class TopK:
    """A codec for the ``top`` largest of every 4,096 values of flat tensors; ``sizes``: their numbers of elements.

    Its bytes are `istmpi.engine.packed_sizes.top_k_bytes`.
    """

    top: int
    two_bits: bool
    sizes: tuple[int, ...]

    @property
    def kept(self) -> list[int]:
        return [
            -(-self.top * min(CHUNK, size - start) // CHUNK) for size in self.sizes for start in range(0, size, CHUNK)
        ]

    def encode(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        places, values = zip(*(chosen for tensor in tensors for chosen in self._chosen(tensor)))
        sent = _pack_places(torch.cat([each.reshape(-1) for each in places]))
        if not self.two_bits:
            return torch.cat([sent, torch.cat([each.reshape(-1) for each in values]).view(torch.uint8)])
        codes, levels = zip(*map(_in_two_bits, values))
        packed = _pack_codes(torch.cat([each.reshape(-1) for each in codes]))
        return torch.cat([sent, packed, torch.cat(levels).view(torch.uint8).view(-1)])

    def decode(self, packed: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return places among all values, one tensor's behind the other's, and the values there."""
        kept = torch.tensor(self.kept)
        starts = [first + start for first, size in self._placed() for start in range(0, size, CHUNK)]
        entries = top_k_entries(self.top, self.sizes)
        split = -(-3 * entries // 2)
        places = _unpack_places(packed[:split], entries) + torch.tensor(starts).repeat_interleave(kept)
        if not self.two_bits:
            return places, packed[split:].clone().view(dtype)
        middle = split - (-entries // 4)
        codes = (packed[split:middle, None] >> _BITS & 3).view(-1)[:entries]
        levels = packed[middle:].clone().view(torch.bfloat16).view(-1, 2).to(dtype).repeat_interleave(kept, 0)
        magnitudes = torch.where(codes & 1 > 0, levels[:, 1], levels[:, 0])
        return places, torch.where(codes & 2 > 0, -magnitudes, magnitudes)

    def _placed(self) -> list[tuple[int, int]]:
        return [(sum(self.sizes[:number]), size) for number, size in enumerate(self.sizes)]

    def _chosen(self, values: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return places and values of whole chunks, and of the rest: ``[chunk, value]``."""
        whole = values.numel() // CHUNK * CHUNK
        chosen = []
        for part in (values[:whole].view(-1, CHUNK), values[whole:].view(1, -1)):
            if part.numel():
                count = -(-self.top * part.shape[1] // CHUNK)
                magnitudes = part.abs().nan_to_num_(torch.inf)
                least = magnitudes.topk(count, dim=1).values[:, -1:]
                above, tied = magnitudes > least, magnitudes == least
                tied &= tied.cumsum(1) <= count - above.sum(1, keepdim=True)  # of equals the first
                places = (above | tied).nonzero()[:, 1].view(-1, count)
                chosen.append((places, part.gather(1, places)))
        return chosen


def _in_two_bits(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes of values ``[chunk, value]``, and the two levels of each chunk."""
    magnitudes = values.abs()
    mean = magnitudes.mean(1, keepdim=True)
    above = magnitudes > mean
    few, many = above.sum(1), (~above).sum(1)
    low = torch.where(above, 0, magnitudes).sum(1) / many.clamp(min=1)
    high = torch.where(above, magnitudes, 0).sum(1) / few.clamp(min=1)
    codes = above.to(torch.uint8) | (values < 0).to(torch.uint8) << 1
    return codes, torch.stack([low, high], 1).to(torch.bfloat16)


def _pack_places(places: torch.Tensor) -> torch.Tensor:
    count = len(places)
    first, second = torch.nn.functional.pad(places, (0, count % 2)).view(-1, 2).unbind(1)
    packed = torch.stack([first & 255, first >> 8 | (second & 15) << 4, second >> 4], 1).to(torch.uint8).view(-1)
    return packed[: -(-3 * count // 2)]


def _unpack_places(packed: torch.Tensor, count: int) -> torch.Tensor:
    low, middle, high = torch.nn.functional.pad(packed, (0, -len(packed) % 3)).long().view(-1, 3).unbind(1)
    return torch.stack([low | (middle & 15) << 8, middle >> 4 | high << 4], 1).view(-1)[:count]


def _pack_codes(codes: torch.Tensor) -> torch.Tensor:
    fours = torch.nn.functional.pad(codes, (0, -len(codes) % 4)).view(-1, 4)
    return (fours << _BITS).sum(1, dtype=torch.uint8)
