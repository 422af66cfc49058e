"""The buffers of messages, and what becomes of received blocks (`istmpi.engine.transfer`)."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch

from istmpi.comm import Communicator
from istmpi.comm.codec import EXACT
from istmpi.engine.blocks import Block, Message, bits

_ALIGNMENT = 64
_INTEGERS = {8: np.int64, 4: np.int32, 2: np.int16, 1: np.int8}


class Staging:
    """A flat byte buffer with one aligned message for each peer, and a view for each block of a
    message."""

    def __init__(self, messages: Sequence[Message], communicator: Communicator, name: str):
        counts = []
        for message in messages:
            counts.append(sum(block.sent_nbytes for block in message))
        # The last sum is the length of the buffer.
        *starts, nbytes = accumulate(map(_align, counts), initial=0)
        buffer = communicator.scratch(name, nbytes)
        self.layout = (buffer, counts, starts)
        self.parts: list[list[tuple[Block, np.ndarray]]] = []
        """The blocks of each peer's message, each with its place in the buffer."""
        for message, start in zip(messages, starts, strict=True):
            parts = []
            for block in message:
                stop = start + block.sent_nbytes
                parts.append((block, _part(block, buffer[start:stop])))
                start = stop
            self.parts.append(parts)


def _part(block: Block, memory: np.ndarray) -> np.ndarray:
    if block.form == EXACT:
        return memory.view(_INTEGERS[block.itemsize]).reshape(block.shape)
    return memory


def _align(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def unpack_blocks(
    messages: Sequence[Message],
    parts: Sequence[list[np.ndarray]],
    target: Mapping[str, torch.Tensor],
    weights: Sequence[float],
) -> None:
    """Write received blocks into ``target``; several ranks' blocks become their weighted mean, in
    rank order."""
    blocks: dict[tuple[int, int], Block] = {}
    copies: dict[tuple[int, int], list[tuple[torch.Tensor, float]]] = {}
    for message, received, weight in zip(messages, parts, weights, strict=True):
        # Blocks of a mean have the same place in the message of each of its ranks.
        for place, (block, values) in enumerate(zip(message, received, strict=True)):
            if block.mean is None:
                block.place(target[block.name], values)
            else:
                copy = torch.from_numpy(values).view(target[block.name].dtype)
                blocks.setdefault((place, block.mean), block)
                copies.setdefault((place, block.mean), []).append((copy, weight))
    for key, block in blocks.items():
        block.place(target[block.name], bits(_mean(copies[key])))


def _mean(copies: list[tuple[torch.Tensor, float]]) -> torch.Tensor:
    """Return the weighted mean as the first copy plus the mean difference from it: exact if all
    copies are equal."""
    # decision 13: a sum divided by P rounds, so push after pull would change weights.
    (first, _), *others = copies
    if not others:
        return first
    # Integers are rounded down; floats of 2 bytes are averaged as float32.
    wide = first.dtype
    rounding: str | None = "floor"
    if first.is_floating_point():
        rounding = None
        if first.dtype != torch.float64:
            wide = torch.float32
    difference = torch.zeros_like(first, dtype=wide)
    for other, weight in others:
        difference.add_(other.to(wide) - first.to(wide), alpha=weight)
    total = sum(weight for _, weight in copies)
    mean = first.to(wide) + torch.div(difference, total, rounding_mode=rounding)
    return mean.to(first.dtype)
