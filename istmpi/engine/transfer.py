"""Moves parameters from one layout to another, with one all-to-all exchange or several smaller
ones.

A message is ``tensor[np.ix_(...)]`` for each parameter in turn (`istmpi.engine.layout`). Sender and
receiver both compute the indices from the layouts, so no index is sent. Building a Transfer is
pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from istmpi.comm import STAGING_BYTES, Communicator
from istmpi.comm.codec import EXACT, Wire
from istmpi.engine.axes import Axis, Parameter
from istmpi.engine.blocks import Block, Message, split
from istmpi.engine.layout import (
    Layout,
    TrainingLayout,
    count_largest_message,
    pieces_to_move,
)
from istmpi.engine.packed_sizes import Largest
from istmpi.engine.positions import Positions, overlap
from istmpi.engine.route import Leg
from istmpi.engine.staging import Staging, unpack_blocks
from istmpi.engine.wire import BlockCodec, choose_form, count_scales


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
        exclude: TrainingLayout | None = None,
        wire: Wire | None = None,
        shared: bool = True,
    ):
        """Plan the messages of ``rank``.

        ``exclude``: a deal. Elements of dealt parameters move only if no rank holds them in that
        deal. ``wire``: the form of sent values, to which a rank's own values in a mean are rounded;
        None: unchanged values. ``shared``: False leaves out what all ranks have of parameters that
        are dealt out in part. The ``exclude`` deal does not exclude that.
        """
        self.rank = rank
        self.ranks = source.ranks
        # Only `Replicated` has weights; other ranks count alike in a mean.
        self._weights = getattr(source, "weights", None) or [1] * self.ranks
        # The buffer has a message for each peer.
        self._capacity = staging_bytes // self.ranks
        self._source = source
        self._target = target
        # decision 11: push and pull leave out what a rank trains in both rounds, which hops.
        self._exclude = exclude
        self._wire = wire
        pieces = pieces_to_move(parameters, (source, target, exclude), shared)
        self._pieces = sorted(pieces, key=self._precedence)
        self.sends: list[Message] = self._messages(source, target)
        self.receives: list[Message] = self._messages(target, source)

    @staticmethod
    def from_leg(leg: Leg, rank: int) -> "Transfer":
        """Return the transfer of a leg with layouts, seen from one rank."""
        if leg.source is None or leg.target is None or isinstance(leg.wire, Largest):
            raise AssertionError(f"the leg {leg.name} is a mean, not a transfer")
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
        total = 0
        for message in _without(self.sends, self.rank):
            total += sum(block.sent_nbytes for block in message)
        return total

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
        coding = _Coding(self._wire, self.sends, source, self.rank)
        for sends, receives in self._rounds(communicator):
            outgoing = Staging(_without(sends, self.rank), communicator, "send")
            incoming = Staging(_without(receives, self.rank), communicator, "receive")
            for peer, parts in enumerate(outgoing.parts):
                for block, values in parts:
                    coding.pack(block, peer, values)
            if self.ranks > 1:
                # decision 05: one MPI_Alltoallv, between hosts, too.
                communicator.alltoallv(outgoing.layout, incoming.layout)
            arrived = []
            for peer, parts in enumerate(incoming.parts):
                arrived.append([coding.unpack(block, peer, values) for block, values in parts])
            arrived[self.rank] = [coding.keep(block) for block in sends[self.rank]]
            unpack_blocks(receives, arrived, target, self._weights)

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

    def _precedence(self, item: tuple[str, int, Parameter]) -> tuple[int, int]:
        """Return the place of a piece in the order of a message: means first, of most ranks first,
        then large elements.

        Blocks of a mean thus have the same numbers in the messages of all its ranks, and each block
        begins at a multiple of its element size.
        """
        _, _, piece = item
        return -self._source.copies(piece.pattern.names), -piece.itemsize

    def _messages(self, here: Layout, there: Layout) -> list[Message]:
        """Return the blocks for each peer: the parts of this rank's tensors that the peer has,
        too."""
        axes = self._distinct_axes
        positions = []
        for axis, place in axes:
            # A block's index counts along this rank's whole tensor, of which a piece is a part.
            whole = replace(axis, omitted=frozenset())
            positions.append(here.positions(whole, place, self.rank))
        holders = []
        for (axis, _), part in zip(axes, positions, strict=True):
            holders.append(self._holders(axis, part))
        moving = self._moving_pieces(holders)
        messages: list[Message] = []
        for peer in range(self.ranks):
            shared = []
            for (axis, place), part in zip(axes, positions, strict=True):
                shared.append(overlap(part, there.positions(axis, place, peer)))
            message = []
            for piece in moving:
                block = piece.block(shared, holders, peer)
                if block and block.nbytes:
                    message.append(block)
            messages.append(message)
        return messages

    @cached_property
    def _distinct_axes(self) -> list[tuple[Axis, int]]:
        """The axes of all pieces, each once, with 0 for a tensor's first axis and otherwise 1.

        Owners divide a tensor's first axis alone.
        """
        axes: dict[tuple[Axis, int], None] = {}
        for _, _, piece in self._pieces:
            for place, axis in enumerate(piece.pattern.axes):
                axes[axis, min(place, 1)] = None
        return list(axes)

    def _moving_pieces(self, holders: Sequence[np.ndarray | None]) -> "list[_MovingPiece]":
        """Return the pieces of which some elements move. ``holders``: those of each distinct
        axis."""
        numbers = {axis: number for number, axis in enumerate(self._distinct_axes)}
        moving = []
        for name, number, piece in self._pieces:
            axes = [numbers[axis, min(at, 1)] for at, axis in enumerate(piece.pattern.axes)]
            dealt = []
            for at in axes:
                ranks = holders[at]
                if ranks is not None:
                    dealt.append(ranks)
            # With two dealt axes, an element has a holder only if both name the same rank.
            if len(dealt) == 1 and (dealt[0] >= 0).all():
                continue  # another transfer moves all of its elements
            form, scales = self._forms[name, number]
            copies = self._source.copies(piece.pattern.names)
            averaged = copies
            # Copies of units that are not dealt may be on any ranks: all senders are one mean.
            if copies > 1 and not piece.pattern.dealt(self._source.units):
                averaged = self.ranks
            moving.append(
                _MovingPiece(
                    name=name,
                    number=number,
                    axes=axes,
                    itemsize=piece.itemsize,
                    averaged=averaged,
                    excludes=bool(dealt),
                    form=form,
                    scales=scales,
                )
            )
        return moving

    @cached_property
    def _forms(self) -> dict[tuple[str, int], tuple[str, int]]:
        """The form and the number of scales with which each piece is sent."""
        kind = self._wire.kind if self._wire else "float32"
        dealt = {**self._source.units, **self._target.units}
        forms = {}
        for name, number, piece in self._pieces:
            form = choose_form(kind, name, piece)
            scales = count_scales(form, piece, self._source.lengths, dealt, self.ranks)
            forms[name, number] = (form, scales)
        return forms

    def _holders(self, axis: Axis, positions: Positions) -> np.ndarray | None:
        """Return the rank that holds each position in the excluded deal: ``[position]`` int64, -1
        for no rank.

        Returns None if the deal does not deal out the axis, or if no deal is excluded.
        """
        ranks = self._exclude.holder(axis) if self._exclude else None
        if ranks is None:
            return None
        if isinstance(positions, range):
            return ranks[positions.start : positions.stop]
        return ranks[positions]

    def _rounds(self, communicator: Communicator) -> Iterator[tuple[list[Message], list[Message]]]:
        """Yield (sends, receives) of exchanges that fit the staging limit, equally many on all
        ranks."""
        if self._largest_message <= self._capacity:
            yield self.sends, self.receives
            return
        sends = split(self.sends, self._capacity)
        receives = split(self.receives, self._capacity)
        nothing: list[Message] = [()] * self.ranks
        rounds = communicator.allreduce_max(max(len(sends), len(receives)))
        # A rank takes part in each exchange, also where it has nothing left to send or receive.
        sends += [nothing] * (rounds - len(sends))
        receives += [nothing] * (rounds - len(receives))
        yield from zip(sends, receives, strict=True)

    @property
    def _largest_message(self) -> int:
        """The most bytes that any rank can send to another: the same number on all ranks."""
        pieces = [piece for _, _, piece in self._pieces]
        return count_largest_message(pieces, self._source, self._target)


@dataclass(frozen=True)
class _MovingPiece:
    """A piece of a parameter of which some elements move between two layouts."""

    name: str
    number: int
    axes: list[int]
    """The numbers of the piece's axes among the distinct axes of all pieces."""
    itemsize: int
    averaged: int
    """The number of neighbouring ranks of whose copies a receiver takes the mean; 1 for no mean."""
    excludes: bool
    """True if elements that a rank holds in the excluded deal do not move."""
    form: str
    scales: int

    def block(
        self,
        shared: Sequence[tuple[slice | np.ndarray, int]],
        holders: Sequence[np.ndarray | None],
        peer: int,
    ) -> Block | None:
        """Return the block for a ``peer``; None if it has no element.

        ``shared``: the places and the number of the positions that the peer has, too, for each
        distinct axis. ``holders``: the ranks that hold each of this rank's positions.
        """
        extent = tuple(shared[at][1] for at in self.axes)
        if 0 in extent:
            return None
        excluded = []
        if self.excludes:
            for at in self.axes:
                ranks = holders[at]
                excluded.append(None if ranks is None else ranks[shared[at][0]])
        mean = None
        if self.averaged > 1:
            mean = peer // self.averaged
        return Block(
            name=self.name,
            index=tuple(shared[at][0] for at in self.axes),
            extent=extent,
            itemsize=self.itemsize,
            mean=mean,
            holders=tuple(excluded),
            form=self.form,
            scales=self.scales,
            piece=self.number,
        )


class _Coding:
    """Packs and unpacks blocks, unchanged or rounded, for one transfer of one rank."""

    def __init__(
        self,
        wire: Wire | None,
        messages: Sequence[Message],
        source: Mapping[str, torch.Tensor],
        rank: int,
    ):
        self._source = source
        self._rank = rank
        self._settles = bool(wire and wire.settles)
        self._codec = BlockCodec(wire.key, messages, source) if wire else None

    def pack(self, block: Block, peer: int, values: np.ndarray) -> None:
        """Write a block for ``peer`` into ``values``, a part of the send buffer."""
        if block.form == EXACT or self._codec is None:
            block.pack(self._source[block.name], values)
            return
        self._codec.encode(block, self._rank, peer, values)
        if self._settles:
            self._codec.settle(block, peer, values)

    def unpack(self, block: Block, peer: int, values: np.ndarray) -> np.ndarray:
        """Return the values of a block that ``peer`` sent."""
        if block.form == EXACT or self._codec is None:
            return values
        return self._codec.decode(block, peer, values)

    def keep(self, block: Block) -> np.ndarray:
        """Return the values of a block that stays on this rank.

        In a mean, they are rounded like those of other ranks.
        """
        if block.form == EXACT or self._codec is None or block.mean is None:
            return block.packed(self._source[block.name])
        return self._codec.through(block, self._rank)


def _without(messages: Sequence[Message], rank: int) -> list[Message]:
    return [() if peer == rank else message for peer, message in enumerate(messages)]
