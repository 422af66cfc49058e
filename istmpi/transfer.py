"""Moves every parameter from one layout to another with one ``MPI_Alltoallv``.

Two parts of a tensor meet in the outer product of their per-axis intersections, so a message is
``tensor[np.ix_(...)]`` for each parameter in turn. Sender and receiver both compute it from the layouts: no index ever
crosses the wire. Building a Transfer is pure; tensors and the communicator are arguments of `Transfer.run`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, zip_longest
from math import prod

import numpy as np
import torch

from istmpi.axes import Axis, Parameter, overlap
from istmpi.comm import STAGING_BYTES, Communicator
from istmpi.layout import Layout
from istmpi.partition import Partition

_ALIGNMENT = 64
_TEMPORARY_BYTES = 2**20

Index = tuple[slice | np.ndarray, ...]


@dataclass(frozen=True)
class Block:
    """One parameter's part of a message: where it lies in this rank's tensor, and its shape."""

    name: str
    index: Index
    extent: tuple[int, ...]
    """How many positions of every axis."""
    itemsize: int
    mean: bool
    """The receiver takes the mean over all senders of this block."""
    holders: tuple[np.ndarray | None, ...] = ()
    """Where elements that a rank has in a third layout are left out: who has each position there, of dealt axes."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of the values as they travel: one axis where some are left out."""
        if not self.holders:
            return self.extent
        known = [where[where >= 0] for where in self.holders if where is not None]
        ranks = 1 + max((int(where.max()) for where in known if len(where)), default=0)
        alike = np.prod([np.bincount(where, minlength=ranks) for where in known], axis=0).sum()
        free = prod(length for length, where in zip(self.extent, self.holders, strict=True) if where is None)
        return (prod(self.extent) - int(alike) * free,)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.itemsize

    @property
    def span(self) -> int:
        """Bytes with what is left out."""
        return prod(self.extent) * self.itemsize

    @property
    def wanted(self) -> np.ndarray:
        """What is not left out: true or false, of the shape ``extent``."""
        axes = [
            where.reshape([-1 if place == axis else 1 for place in range(len(self.extent))])
            for axis, where in enumerate(self.holders)
            if where is not None
        ]
        first, *others = axes
        alike = first >= 0
        for other in others:
            alike = alike & (first == other)
        return np.broadcast_to(~alike, self.extent)


Message = Sequence[Block]


class Transfer:
    """The plan that moves values from a source layout to a target layout, seen from one rank.

    Every element that a rank has in the target becomes the mean over the ranks that have it in the source; one that
    no rank has there keeps its value. With one source that is a copy; equal values stay as they are, bit for bit.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        source: Layout,
        target: Layout,
        rank: int,
        staging_bytes: int | None = None,
        weights: Sequence[float] | None = None,
        missing_from: Partition | None = None,
    ):
        """``weights``: how much each rank's values count in a mean; by default all the same.

        ``missing_from``: of what this deal deals out, only the elements that no rank has in it.
        """
        self.rank = rank
        self.ranks = source.ranks
        self._weights = weights or [1] * self.ranks
        self._capacity = (staging_bytes or STAGING_BYTES) // self.ranks
        self._source, self._target, self._missing_from = source, target, missing_from
        self._parameters = sorted(parameters.items(), key=self._precedence)
        self.sends: list[Message] = self._messages(source, target)
        self.receives: list[Message] = self._messages(target, source)

    @cached_property
    def bytes_sent(self) -> int:
        """Bytes that this rank hands to MPI; what stays on the rank does not count."""
        return sum(block.nbytes for peer, message in enumerate(self.sends) if peer != self.rank for block in message)

    def run(
        self, source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor], communicator: Communicator
    ) -> None:
        """Fill this rank's tensors of the target layout from all ranks' tensors of the source layout. Collective.

        Both map each parameter's name to a contiguous tensor in host memory, of the shape of this rank's part.
        """
        for sends, receives in self._rounds(communicator):
            kept = sends[self.rank]
            sends = _without(sends, self.rank)
            outgoing = _Staging(sends, communicator.scratch("send", _staged(sends)))
            expected = _without(receives, self.rank)
            incoming = _Staging(expected, communicator.scratch("receive", _staged(expected)))
            for message, parts in zip(sends, outgoing.parts, strict=True):
                for block, values in zip(message, parts, strict=True):
                    _pack(source, block, values)
            if self.ranks > 1:
                communicator.alltoallv(outgoing.layout, incoming.layout)
            incoming.parts[self.rank] = [_part(source, block) for block in kept]
            _unpack(receives, incoming.parts, target, self._weights)

    def reached(self, target: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Which elements of these tensors of the target layout the transfer fills: true or false for each."""
        marks = {name: torch.zeros(tensor.shape, dtype=torch.bool) for name, tensor in target.items()}
        for message in self.receives:
            for block in message:
                if block.name in marks:
                    _scatter(marks[block.name].numpy(), block.index, np.ones(block.shape, dtype=bool))
        return marks

    def _precedence(self, item: tuple[str, Parameter]) -> tuple[bool, int]:
        """Means first, so that all senders' messages split alike; then wide elements, so that all lie aligned."""
        _, parameter = item
        return self._source.copies(parameter.pattern.names) == 1, -parameter.itemsize

    def _messages(self, here: Layout, there: Layout) -> list[Message]:
        """For every peer, the blocks of this rank's tensors that it shares with that peer's."""
        mine = {}
        holders = self._holders([axis for _, one in self._parameters for axis in one.pattern.axes])
        messages = []
        for peer in range(self.ranks):
            shared = {}
            blocks = []
            for name, parameter in self._parameters:
                axes: list[tuple[Axis, int]] = [(axis, min(at, 1)) for at, axis in enumerate(parameter.pattern.axes)]
                for at in axes:
                    if at not in mine:
                        mine[at] = here.positions(*at, self.rank)
                    if at not in shared:
                        shared[at] = overlap(mine[at], there.positions(*at, peer))
                index = tuple(shared[at][0] for at in axes)
                extent = tuple(shared[at][1] for at in axes)
                left_out = [
                    holders[axis][mine[axis, place]][where] if axis in holders else None
                    for (axis, place), where in zip(axes, index, strict=True)
                ]
                mean = self._source.copies(parameter.pattern.names) > 1
                there_too = () if all(where is None for where in left_out) else tuple(left_out)
                block = Block(name, index, extent, parameter.itemsize, mean, there_too)
                if block.nbytes:
                    blocks.append(block)
            messages.append(blocks)
        return messages

    def _holders(self, axes: Iterable[Axis]) -> dict[Axis, np.ndarray]:
        """Who has each position of these axes, as far as they are dealt, in the layout that nothing shall be in."""
        if self._missing_from is None:
            return {}
        found = {axis: self._missing_from.holder(axis) for axis in set(axes)}
        return {axis: ranks for axis, ranks in found.items() if ranks is not None}

    def _rounds(self, communicator: Communicator) -> Iterator[tuple[list[Message], list[Message]]]:
        """Sends and receives, cut into as many rounds as the staging limit asks for: the same number on every rank."""
        if self._largest_message <= self._capacity:
            yield self.sends, self.receives
            return
        sends, receives = _split(self.sends, self._capacity), _split(self.receives, self._capacity)
        nothing: list[Message] = [()] * self.ranks
        rounds = communicator.maximum(max(len(sends), len(receives)))
        for number in range(rounds):
            yield tuple(part[number] if number < len(part) else nothing for part in (sends, receives))

    @property
    def _largest_message(self) -> int:
        """No message between any two ranks has more bytes: the same bound on every rank."""
        return sum(
            parameter.itemsize
            * prod(
                min(self._source.largest(axis, place), self._target.largest(axis, place))
                for place, axis in enumerate(parameter.pattern.axes)
            )
            for _, parameter in self._parameters
        )


class _Staging:
    """A flat byte buffer with one aligned message for each peer, and a view for each of their blocks."""

    def __init__(self, messages: Sequence[Message], buffer: np.ndarray):
        counts = [sum(block.nbytes for block in message) for message in messages]
        starts = [0, *accumulate(map(_aligned, counts))][:-1]
        self.layout = (buffer, counts, starts)
        self.parts: list[list[np.ndarray]] = []
        for message, start in zip(messages, starts, strict=True):
            ends = accumulate((block.nbytes for block in message), initial=start)
            self.parts.append(
                [
                    buffer[at : at + block.nbytes].view(_INTEGER[block.itemsize]).reshape(block.shape)
                    for block, at in zip(message, ends, strict=False)
                ]
            )


_INTEGER = {8: np.int64, 4: np.int32, 2: np.int16, 1: np.int8}


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _staged(messages: Sequence[Message]) -> int:
    """Bytes of the staging buffer for these messages."""
    return sum(_aligned(sum(block.nbytes for block in message)) for message in messages)


def _without(messages: Sequence[Message], rank: int) -> list[Message]:
    return [() if peer == rank else message for peer, message in enumerate(messages)]


def _split(messages: Sequence[Message], capacity: int) -> list[list[Message]]:
    """Messages cut into rounds of at most ``capacity`` bytes a peer: ``[round][peer]``."""
    return [list(rounds) for rounds in zip_longest(*(_cut(message, capacity) for message in messages), fillvalue=())]


def _cut(message: Message, capacity: int) -> Iterator[Message]:
    """A message as a sequence of shorter ones; both ends cut alike, as the cuts follow from the shapes alone."""
    part: list[Block] = []
    room = capacity
    for block in message:
        axis = _cut_axis(block, capacity)
        length = block.extent[axis]
        slab = block.span // length
        start = 0
        while start < length:
            count = min(length - start, room // slab)
            if count <= 0 and part:
                yield part
                part, room = [], capacity
                continue
            count = max(count, 1)
            part.append(_slab(block, axis, start, start + count))
            room -= count * slab
            start += count
    if part:
        yield part


def _cut_axis(block: Block, capacity: int) -> int:
    """The outermost axis with slices small against the capacity, as those are the most contiguous; else the longest."""
    small = (axis for axis, length in enumerate(block.extent) if block.span // length <= capacity // 16)
    return next(small, int(np.argmax(block.extent)))


def _slab(block: Block, axis: int, start: int, stop: int) -> Block:
    """The positions ``start .. stop - 1`` of a block along one axis."""
    where = block.index[axis]
    if isinstance(where, slice):
        where = slice(where.start + start, where.start + stop)
    else:
        where = where[start:stop]
    index = (*block.index[:axis], where, *block.index[axis + 1 :])
    extent = (*block.extent[:axis], stop - start, *block.extent[axis + 1 :])
    holders = block.holders
    if holders and holders[axis] is not None:
        holders = (*holders[:axis], holders[axis][start:stop], *holders[axis + 1 :])
    return replace(block, index=index, extent=extent, holders=holders)


def _unpack(
    messages: Sequence[Message],
    parts: Sequence[list[np.ndarray]],
    target: Mapping[str, torch.Tensor],
    weights: Sequence[float],
) -> None:
    """Write received blocks where they belong; blocks that several ranks sent become their mean, in rank order."""
    shared: dict[int, tuple[Block, list[tuple[np.ndarray, float]]]] = {}
    for message, received, weight in zip(messages, parts, weights, strict=True):
        for number, (block, values) in enumerate(zip(message, received, strict=True)):
            if block.mean:
                shared.setdefault(number, (block, []))[1].append((values, weight))
            else:
                _place(target, block, values)
    for block, copies in shared.values():
        dtype = target[block.name].dtype
        mean = _mean([(torch.from_numpy(values).view(dtype), weight) for values, weight in copies])
        _place(target, block, _bits(mean))


def _mean(copies: list[tuple[torch.Tensor, float]]) -> torch.Tensor:
    """The weighted mean as the first copy plus the mean difference from it: equal copies give that very value."""
    (first, _), *others = copies
    if not others:
        return first
    exact = first.dtype == torch.float64 or not first.is_floating_point()
    wide = first.dtype if exact else torch.float32
    difference = torch.zeros_like(first, dtype=wide)
    for other, weight in others:
        difference.add_(other.to(wide) - first.to(wide), alpha=weight)
    rounding = None if first.is_floating_point() else "floor"
    total = sum(weight for _, weight in copies)
    return (first.to(wide) + torch.div(difference, total, rounding_mode=rounding)).to(first.dtype)


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as integers of the element's size: moves any dtype unchanged, NumPy's or not."""
    return tensor.detach().view(_TORCH_INTEGER[tensor.element_size()]).numpy()


_TORCH_INTEGER = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


def _part(source: Mapping[str, torch.Tensor], block: Block) -> np.ndarray:
    """A block of this rank's own, as it would travel; a view where that is possible."""
    bits = _bits(source[block.name])
    if not block.holders and all(isinstance(where, slice) for where in block.index):
        return bits[block.index]
    values = np.empty(block.shape, dtype=bits.dtype)
    _pack(source, block, values)
    return values


def _pack(source: Mapping[str, torch.Tensor], block: Block, out: np.ndarray) -> None:
    """A block's values, as they travel."""
    bits = _bits(source[block.name])
    if not block.holders:
        _gather(bits, block.index, out)
        return
    values = np.empty(block.extent, dtype=bits.dtype)
    _gather(bits, block.index, values)
    out[:] = values[block.wanted]


def _place(target: Mapping[str, torch.Tensor], block: Block, values: np.ndarray) -> None:
    """The values that travelled, where they belong."""
    bits = _bits(target[block.name])
    if block.holders:
        arrived, values = values, np.empty(block.extent, dtype=bits.dtype)
        _gather(bits, block.index, values)
        values[block.wanted] = arrived
    _scatter(bits, block.index, values)


def _gather(values: np.ndarray, index: Index, out: np.ndarray) -> None:
    """``out[...] = values[np.ix_(*index)]``, axis by axis, which is three times as fast."""
    values = values[tuple(where if isinstance(where, slice) else slice(None) for where in index)]
    fancy = [axis for axis, where in enumerate(index) if not isinstance(where, slice)]
    if not fancy:
        np.copyto(out, values)
        return
    axis = fancy[0]
    where = index[axis]
    if len(fancy) == 1:
        np.take(values, where, axis=axis, out=out, mode="clip")
        return
    rest = tuple(index[other] if other in fancy[1:] else slice(None) for other in range(len(index)))
    step = max(_TEMPORARY_BYTES * values.shape[axis] // values.nbytes, 1)
    for start in range(0, len(where), step):
        chunk = (slice(None),) * axis + (slice(start, start + step),)
        _gather(values.take(where[start : start + step], axis=axis), rest, out[chunk])


def _scatter(target: np.ndarray, index: Index, values: np.ndarray) -> None:
    """``target[np.ix_(*index)] = values``, row by row where rows are long, which is twice as fast."""
    target = target[tuple(where if isinstance(where, slice) else slice(None) for where in index)]
    fancy = [axis for axis, where in enumerate(index) if not isinstance(where, slice)]
    if not fancy:
        target[...] = values
    elif len(fancy) == 1:
        target[(slice(None),) * fancy[0] + (index[fancy[0]],)] = values
    elif fancy[0] == 0 and values[0].size >= _LONG_ROW:
        rest = tuple(where if axis in fancy else slice(None) for axis, where in enumerate(index))[1:]
        for row, part in zip(index[0], values, strict=True):
            _scatter(target[row], rest, part)
    else:
        open_index = [where if axis in fancy else np.arange(target.shape[axis]) for axis, where in enumerate(index)]
        target[np.ix_(*open_index)] = values


_LONG_ROW = 512
