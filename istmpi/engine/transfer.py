"""Moves parameters from one layout to another, with one all-to-all exchange or several smaller
ones.

A message is ``tensor[np.ix_(...)]`` for each parameter in turn (`istmpi.engine.layout`). Sender and
receiver both compute the indices from the layouts, so no index is sent. Building a Transfer is
pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, chain
from math import prod

import numpy as np
import torch

from istmpi.comm import STAGING_BYTES, Communicator
from istmpi.comm.codec import EXACT, Wire
from istmpi.engine.axes import Axis, Parameter, Positions, overlap
from istmpi.engine.blocks import Block, Message, bits, split
from istmpi.engine.layout import Layout, pieces_to_move
from istmpi.engine.partition import Partition
from istmpi.engine.route import Leg
from istmpi.engine.wire import BlockCodec, form_of, scales_of

_ALIGNMENT = 64
_INTEGERS = {8: np.int64, 4: np.int32, 2: np.int16, 1: np.int8}


class Transfer:
    """The messages that move values from a source layout to a target layout, seen from one rank.

    Every element that a rank has in the target becomes the mean over the ranks that have it in the
    source. An element that only one rank has in the source is copied; an element that no rank has,
    or that is excluded, keeps its value. The mean of equal values is exact.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        source: Layout,
        target: Layout,
        rank: int,
        staging_bytes: int = STAGING_BYTES,
        exclude: Partition | None = None,
        wire: Wire | None = None,
        shared: bool = True,
    ):
        """``exclude``: a deal. Elements of dealt parameters move only if no rank holds them in that
        deal.

        ``wire``: the form of sent values, to which a rank's own values in a mean are rounded; None:
        unchanged values. ``shared``: False leaves out what all ranks have of parameters that are
        dealt out in part. The ``exclude`` deal does not exclude that.
        """
        self.rank = rank
        self.ranks = source.ranks
        self._weights = getattr(source, "weights", None) or [1] * self.ranks
        self._capacity = staging_bytes // self.ranks
        self._source, self._target, self._exclude, self._wire = source, target, exclude, wire
        self._pieces = sorted(
            pieces_to_move(parameters, (source, target, exclude), shared), key=self._precedence
        )
        self.sends: list[Message] = self._messages(source, target)
        self.receives: list[Message] = self._messages(target, source)

    @staticmethod
    def of(leg: Leg, rank: int) -> "Transfer":
        return Transfer(
            leg.parameters,
            leg.source,
            leg.target,
            rank,
            exclude=leg.exclude,
            wire=leg.wire,
            shared=leg.shared,
        )

    @cached_property
    def bytes_sent(self) -> int:
        """The bytes that this rank hands to MPI, without those that stay on the rank."""
        return sum(
            block.sent_nbytes
            for peer, message in enumerate(self.sends)
            if peer != self.rank
            for block in message
        )

    def run(
        self,
        source: Mapping[str, torch.Tensor],
        target: Mapping[str, torch.Tensor],
        communicator: Communicator,
    ) -> None:
        """Fill this rank's tensors of the target layout from all ranks' tensors of the source
        layout. Collective.

        ``source`` and ``target`` map each name to a contiguous tensor in host memory, of the shape
        of this rank's part. If ``wire.settles``, rounded values replace the values in ``source``
        that are sent.
        """
        coding = BlockCodec(self._wire.key, self.sends, source) if self._wire else None
        for sends, receives in self._rounds(communicator):
            kept = sends[self.rank]
            sends = _without(sends, self.rank)
            outgoing = _Staging(sends, communicator, "send")
            expected = _without(receives, self.rank)
            incoming = _Staging(expected, communicator, "receive")
            for peer, (message, parts) in enumerate(zip(sends, outgoing.parts, strict=True)):
                for block, values in zip(message, parts, strict=True):
                    if block.form == EXACT:
                        block.pack(source[block.name], values)
                    else:
                        coding.encode(block, self.rank, peer, values)
                        if self._wire.settles:
                            coding.settle(block, peer, values)
            if self.ranks > 1:
                communicator.alltoallv(outgoing.layout, incoming.layout)
            incoming.parts = [
                [
                    values if block.form == EXACT else coding.decode(block, peer, values)
                    for block, values in zip(message, parts)
                ]
                for peer, (message, parts) in enumerate(zip(expected, incoming.parts, strict=True))
            ]
            incoming.parts[self.rank] = [
                coding.through(block, self.rank)
                if block.mean and block.form != EXACT
                else block.packed(source[block.name])
                for block in kept
            ]
            _unpack(receives, incoming.parts, target, self._weights)

    def stay(self, source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor]) -> None:
        """Copy the elements that this rank has in both layouts from ``source`` to ``target``,
        without a mean. Local."""
        for kept, block in zip(self.sends[self.rank], self.receives[self.rank], strict=True):
            block.place(target[block.name], kept.packed(source[block.name]))

    def reached(self, target: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return a boolean mask for each tensor of ``target``: True for the elements that the
        transfer fills."""
        marks = {
            name: torch.zeros(tensor.shape, dtype=torch.bool) for name, tensor in target.items()
        }
        for message in self.receives:
            for block in message:
                if block.name in marks:
                    block.place(marks[block.name], np.ones(block.shape, dtype=np.int8))
        return marks

    def _precedence(self, item: tuple[str, int, Parameter]) -> tuple[bool, int]:
        _, _, piece = item
        return self._source.copies(piece.pattern.names) == 1, -piece.itemsize

    def _messages(self, here: Layout, there: Layout) -> list[Message]:
        """Return the blocks for each peer: the parts of this rank's tensors that the peer has,
        too."""
        places = [
            [(axis, min(at, 1)) for at, axis in enumerate(p.pattern.axes)]
            for _, _, p in self._pieces
        ]
        axes = [*dict.fromkeys(chain(*places))]
        number_of = {axis: number for number, axis in enumerate(axes)}
        # A block's index counts along this rank's whole tensor, of which a piece is a part.
        positions = [
            here.positions(replace(axis, omitted=frozenset()), place, self.rank)
            for axis, place in axes
        ]
        holders = [
            self._holders(axis, part) for (axis, _), part in zip(axes, positions, strict=True)
        ]
        moved = []
        for (name, number, piece), its in zip(self._pieces, places, strict=True):
            parts = [number_of[axis] for axis in its]
            dealt = [holders[at] for at in parts if holders[at] is not None]
            if len(dealt) != 1 or (dealt[0] < 0).any():  # else no element moves
                mean = self._source.copies(piece.pattern.names) > 1
                moved.append((parts, bool(dealt), (piece.itemsize, mean), name, number))
        messages = []
        for peer in range(self.ranks):
            shared = [
                overlap(part, there.positions(*axis, peer))
                for axis, part in zip(axes, positions, strict=True)
            ]
            blocks = []
            for parts, excludes, facts, name, number in moved:
                index, extent = (
                    tuple(shared[at][0] for at in parts),
                    tuple(shared[at][1] for at in parts),
                )
                if 0 not in extent:
                    of_index = ((holders[at], shared[at][0]) for at in parts if excludes)
                    left_out = tuple(
                        ranks if ranks is None else ranks[where] for ranks, where in of_index
                    )
                    block = Block(
                        name, index, extent, *facts, left_out, *self._forms[name, number], number
                    )
                    blocks += [block] if block.nbytes else []
            messages.append(blocks)
        return messages

    @cached_property
    def _forms(self) -> dict[tuple[str, int], tuple[str, int]]:
        kind, dealt = (
            self._wire.kind if self._wire else "float32",
            self._source.units | self._target.units,
        )
        lengths, forms = self._source.lengths, {}
        for name, number, piece in self._pieces:
            form = form_of(kind, name, piece)
            forms[name, number] = form, scales_of(form, piece, lengths, dealt, self.ranks)
        return forms

    def _holders(self, axis: Axis, positions: Positions) -> np.ndarray | None:
        ranks = self._exclude.holder(axis) if self._exclude else None
        if ranks is None:
            return None
        return (
            ranks[positions.start : positions.stop]
            if isinstance(positions, range)
            else ranks[positions]
        )

    def _rounds(self, communicator: Communicator) -> Iterator[tuple[list[Message], list[Message]]]:
        """Yield (sends, receives) of exchanges that fit the staging limit, equally many on all
        ranks."""
        if self._largest_message <= self._capacity:
            yield self.sends, self.receives
            return
        sends, receives = split(self.sends, self._capacity), split(self.receives, self._capacity)
        nothing: list[Message] = [()] * self.ranks
        rounds = communicator.allreduce_max(max(len(sends), len(receives)))
        for number in range(rounds):
            yield tuple(
                part[number] if number < len(part) else nothing for part in (sends, receives)
            )

    @property
    def _largest_message(self) -> int:
        return sum(
            piece.itemsize
            * prod(
                min(self._source.largest(axis, place), self._target.largest(axis, place))
                for place, axis in enumerate(piece.pattern.axes)
            )
            for _, _, piece in self._pieces
        )


class _Staging:
    """A flat byte buffer with one aligned message for each peer, and a view for each block of a
    message."""

    def __init__(self, messages: Sequence[Message], communicator: Communicator, name: str):
        counts = [sum(block.sent_nbytes for block in message) for message in messages]
        *starts, nbytes = accumulate(map(_aligned, counts), initial=0)
        buffer = communicator.scratch(name, nbytes)
        self.layout = (buffer, counts, starts)
        self.parts: list[list[np.ndarray]] = []
        for message, start in zip(messages, starts, strict=True):
            ends = accumulate((block.sent_nbytes for block in message), initial=start)
            self.parts.append(
                [
                    _part(block, buffer[at : at + block.sent_nbytes])
                    for block, at in zip(message, ends, strict=False)
                ]
            )


def _part(block: Block, memory: np.ndarray) -> np.ndarray:
    return (
        memory.view(_INTEGERS[block.itemsize]).reshape(block.shape)
        if block.form == EXACT
        else memory
    )


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _without(messages: Sequence[Message], rank: int) -> list[Message]:
    return [() if peer == rank else message for peer, message in enumerate(messages)]


def _unpack(
    messages: Sequence[Message],
    parts: Sequence[list[np.ndarray]],
    target: Mapping[str, torch.Tensor],
    weights: Sequence[float],
) -> None:
    """Write received blocks into ``target``; several ranks' blocks become their weighted mean, in
    rank order."""
    shared: dict[int, tuple[Block, list[tuple[np.ndarray, float]]]] = {}
    for message, received, weight in zip(messages, parts, weights, strict=True):
        for number, (block, values) in enumerate(zip(message, received, strict=True)):
            if block.mean:
                shared.setdefault(number, (block, []))[1].append((values, weight))
            else:
                block.place(target[block.name], values)
    for block, copies in shared.values():
        dtype = target[block.name].dtype
        mean = _mean([(torch.from_numpy(values).view(dtype), weight) for values, weight in copies])
        block.place(target[block.name], bits(mean))


def _mean(copies: list[tuple[torch.Tensor, float]]) -> torch.Tensor:
    """Return the weighted mean as the first copy plus the mean difference from it: exact if all
    copies are equal."""
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
