"""Blocks, the parts of tensors that messages consist of: where they are in a tensor, and how they
are sent."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import zip_longest
from math import prod

import numpy as np
import torch

from istmpi.comm.codec import EXACT, value_bytes

_TEMPORARY_BYTES = 2**20
_LONG_ROW = 512
"""The elements of a row from which on rows are written one by one."""
_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}

Index = tuple[slice | np.ndarray, ...]


@dataclass(frozen=True)
class Block:
    """The part of one parameter in a message: its place in this rank's tensor, and its shape."""

    name: str
    index: Index
    extent: tuple[int, ...]
    itemsize: int
    mean: int | None
    """The number of the mean that the receiver takes over all ranks that send this block with the
    same number; None if it takes the block as it is."""
    holders: tuple[np.ndarray | None, ...] = ()
    """An array per axis with the rank that holds each position in another deal (-1: no rank); None
    for an axis that is not dealt. Elements that a rank holds in that deal are not sent. Empty if
    all elements are sent."""
    form: str = EXACT
    """The form in which the block's values are sent (`istmpi.comm.codec`)."""
    scales: int = 0
    """The number of scales that are sent with the values."""
    piece: int = 0
    """The number of the block's piece of the parameter (`istmpi.engine.layout.pieces_to_move`)."""
    cut: tuple[int, int, int] | None = None
    """A slab (part) of a block: the axis of the cut, first position, length of the block. None: a
    whole block."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the sent values: ``extent``, or a single axis if the block has
        ``holders``.

        Not sent are the elements whose positions one rank holds on every dealt axis in the other
        deal: that rank has them already.
        """
        if not self.holders:
            return self.extent
        # The number of positions that each rank holds, for each dealt axis. Position -1 is no rank:
        # its count is left out.
        counts = [np.bincount(ranks + 1)[1:] for ranks in self.holders if ranks is not None]
        # A rank above the last of an axis holds nothing there, hence no element.
        ranks_everywhere = min(map(len, counts))
        # A rank's elements are the products of its positions on the dealt axes.
        held = reduce(np.multiply, (count[:ranks_everywhere] for count in counts)).sum()
        undealt = prod(
            length for length, ranks in zip(self.extent, self.holders, strict=True) if ranks is None
        )
        return (prod(self.extent) - int(held) * undealt,)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.itemsize

    @property
    def sent_nbytes(self) -> int:
        """The bytes that are sent. The first slab of a cut block carries the block's scales."""
        values = prod(self.shape)
        return values * value_bytes(self.form, self.itemsize) + self.scales * self.is_first

    @property
    def is_first(self) -> bool:
        return self.cut is None or self.cut[1] == 0

    @property
    def elements(self) -> int:
        """The number of elements of the whole block, including elements that are not sent."""
        if self.cut is None:
            return prod(self.extent)
        axis, _, length = self.cut
        return prod(self.extent[:axis]) * length * prod(self.extent[axis + 1 :])

    def places(self) -> np.ndarray | range:
        """Return the place of each sent value in the flattened whole block."""
        axis, start, length = self.cut or (0, 0, self.extent[0])
        inner = prod(self.extent[axis + 1 :])
        # A cut along the first axis that is longer than 1 leaves one unbroken piece.
        if prod(self.extent[:axis]) == 1 and not self.holders:
            return range(start * inner, (start + self.extent[axis]) * inner)
        if self.holders:
            within_slab = np.flatnonzero(self.mask)
        else:
            within_slab = np.arange(prod(self.extent))
        # Between two rows of the slab, the whole block has the rows of other slabs.
        outer, rest = np.divmod(within_slab, self.extent[axis] * inner)
        return outer * (length * inner) + rest + start * inner

    def in_rows(self, elements: int) -> "Iterator[Block]":
        """Cut a whole block into slabs of rows. A slab has at most ``elements`` elements, or a
        single row."""
        step = max(elements // max(prod(self.extent[1:]), 1), 1)
        for start in range(0, self.extent[0], step):
            yield _slab(self, 0, start, min(start + step, self.extent[0]))

    @property
    def dense_nbytes(self) -> int:
        """The bytes of all elements, also of those that are not sent."""
        return prod(self.extent) * self.itemsize

    @property
    def mask(self) -> np.ndarray:
        """A boolean array of shape ``extent``, for a block with ``holders``: True for elements that
        are sent."""
        axes = []
        for axis, ranks in enumerate(self.holders):
            if ranks is not None:
                # Other axes have length 1, so that the arrays spread over one another.
                shape = [1] * len(self.extent)
                shape[axis] = -1
                axes.append(ranks.reshape(shape))
        first, *others = axes
        # A rank holds an element in that deal if all axes name this rank; -1 is no rank.
        held = first >= 0
        for other in others:
            held = held & (first == other)
        return np.broadcast_to(~held, self.extent)

    def pack(self, tensor: torch.Tensor, out: np.ndarray) -> None:
        if not self.holders:
            _gather(bits(tensor), self.index, out)
            return
        values = np.empty(self.extent, dtype=out.dtype)
        _gather(bits(tensor), self.index, values)
        out[:] = values[self.mask]

    def packed(self, tensor: torch.Tensor) -> np.ndarray:
        values = bits(tensor)
        if not self.holders and all(isinstance(part, slice) for part in self.index):
            return values[self.index]
        out = np.empty(self.shape, dtype=values.dtype)
        self.pack(tensor, out)
        return out

    def place(self, tensor: torch.Tensor, values: np.ndarray) -> None:
        """Write the block's values into its place in a tensor."""
        if not self.holders:
            _scatter(bits(tensor), self.index, values)
            return
        # Elements that were not sent keep their values.
        whole = np.empty(self.extent, dtype=values.dtype)
        _gather(bits(tensor), self.index, whole)
        whole[self.mask] = values
        _scatter(bits(tensor), self.index, whole)


Message = Sequence[Block]


def split(messages: Sequence[Message], capacity: int) -> list[list[Message]]:
    """Cut messages into exchanges, ``[exchange][peer]``; a message has at most ``capacity`` bytes,
    or one slab."""
    cuts = [_cut(message, capacity) for message in messages]
    return [list(exchange) for exchange in zip_longest(*cuts, fillvalue=())]


def _cut(message: Message, capacity: int) -> Iterator[Message]:
    """Cut a message by shapes alone, so that sender and receiver make the same cuts."""
    part: list[Block] = []
    room = capacity
    for block in message:
        axis = _cut_axis(block, capacity)
        length = block.extent[axis]
        slab = block.dense_nbytes // length
        start = 0
        while start < length:
            count = min(length - start, room // slab)
            if count <= 0 and part:
                # The message is full. Only an empty one takes a slab above the capacity.
                yield part
                part = []
                room = capacity
                continue
            count = max(count, 1)
            part.append(_slab(block, axis, start, start + count))
            room -= count * slab
            start += count
    if part:
        yield part


def _cut_axis(block: Block, capacity: int) -> int:
    """Return the axis along which a block is cut: the first with small slabs, or the longest."""
    for axis, length in enumerate(block.extent):
        if block.dense_nbytes // length <= capacity // 16:
            return axis
    return int(np.argmax(block.extent))


def _slab(block: Block, axis: int, start: int, stop: int) -> Block:
    """Return the positions from ``start`` to ``stop`` of a block's axis as a block."""
    whole = block.index[axis]
    if isinstance(whole, slice):
        positions: slice | np.ndarray = slice(whole.start + start, whole.start + stop)
    else:
        positions = whole[start:stop]
    index = (*block.index[:axis], positions, *block.index[axis + 1 :])
    extent = (*block.extent[:axis], stop - start, *block.extent[axis + 1 :])
    holders = block.holders
    if holders:
        ranks = holders[axis]
        if ranks is not None:
            holders = (*holders[:axis], ranks[start:stop], *holders[axis + 1 :])
    # A slab of a slab is cut along the same axis, and counts from the whole block's start.
    _, begin, length = block.cut or (axis, 0, block.extent[axis])
    cut = (axis, begin + start, length)
    return replace(block, index=index, extent=extent, holders=holders, cut=cut)


def _gather(values: np.ndarray, index: Index, out: np.ndarray) -> None:
    """Fill ``out`` with ``values[np.ix_(*index)]``, three times as fast: axis by axis."""
    values = values[_slices(index)]
    fancy = _arrays(index)
    if not fancy:
        np.copyto(out, values)
        return
    axis, where = fancy[0]
    if len(fancy) == 1:
        np.take(values, where, axis=axis, out=out, mode="clip")
        return
    rest: list[slice | np.ndarray] = [slice(None)] * len(index)
    for other, positions in fancy[1:]:
        rest[other] = positions
    # Some rows at a time, so that the temporary copy stays small.
    step = max(_TEMPORARY_BYTES * values.shape[axis] // values.nbytes, 1)
    for start in range(0, len(where), step):
        chunk = (slice(None),) * axis + (slice(start, start + step),)
        _gather(values.take(where[start : start + step], axis=axis), tuple(rest), out[chunk])


def _scatter(target: np.ndarray, index: Index, values: np.ndarray) -> None:
    """Set ``target[np.ix_(*index)]`` to ``values``, twice as fast: long rows one by one."""
    target = target[_slices(index)]
    fancy = _arrays(index)
    if not fancy:
        target[...] = values
        return
    axis, where = fancy[0]
    if len(fancy) == 1:
        target[(slice(None),) * axis + (where,)] = values
    elif axis == 0 and values[0].size >= _LONG_ROW:
        rest: list[slice | np.ndarray] = [slice(None)] * len(index)
        for other, positions in fancy[1:]:
            rest[other] = positions
        for row, part in zip(where, values, strict=True):
            _scatter(target[row], tuple(rest[1:]), part)
    else:
        open_index = [np.arange(length) for length in target.shape]
        for other, positions in fancy:
            open_index[other] = positions
        target[np.ix_(*open_index)] = values


def _slices(index: Index) -> tuple[slice, ...]:
    """Return the slices of an index, and the whole axis in place of each array."""
    return tuple(part if isinstance(part, slice) else slice(None) for part in index)


def _arrays(index: Index) -> list[tuple[int, np.ndarray]]:
    """Return the axes of an index that have arrays of positions, with these."""
    return [(axis, part) for axis, part in enumerate(index) if not isinstance(part, slice)]


def bits(tensor: torch.Tensor) -> np.ndarray:
    """Return the tensor's memory as integers of its element size, so that NumPy copies any
    dtype."""
    return tensor.detach().view(_INTEGERS[tensor.element_size()]).numpy()
