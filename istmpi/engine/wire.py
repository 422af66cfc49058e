"""Chooses the form in which each tensor is sent (`istmpi.comm.codec`), and codes a transfer's
blocks in that form.

A value's rounding depends on its place in the whole block, and a scale belongs to an equal part of
the whole block. Received values therefore do not depend on the cuts of messages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from istmpi import rng
from istmpi.comm.codec import BFLOAT16, CODECS, EXACT, Scales, exponents
from istmpi.engine.axes import Parameter
from istmpi.engine.slots import Slot

if TYPE_CHECKING:
    import torch

    from istmpi.engine.blocks import Block, Message

_AT_ONCE = 2**18
"""The number of values whose scales are computed at a time; a longer row is not cut."""

VALUES_A_SCALE = 128
"""A message between owner and holder has several scales only if each has at least this many values
on average."""


def choose_form(kind: str, name: str, parameter: Parameter) -> str:
    """Return the form of a tensor if method.wire is ``kind``. Tensors that are not float32 are sent
    unchanged.

    Slots and tensors of one axis are sent as bfloat16 (eight bits of precision) if ``kind`` names a
    codec that is too coarse (`for_all` is False): a second moment that is rounded to 0 allows steps
    of any length.
    """
    if kind == "float32" or parameter.dtype != "float32":
        return EXACT
    is_matrix = len(parameter.pattern.axes) > 1 and not isinstance(name, Slot)
    if CODECS[kind].for_all or is_matrix:
        return kind
    return BFLOAT16


def choose_forms(kind: str, parameters: Mapping[str, Parameter]) -> dict[str, str]:
    return {name: choose_form(kind, name, parameter) for name, parameter in parameters.items()}


def count_scales(
    form: str,
    parameter: Parameter,
    lengths: Mapping[str, int],
    groups: Collection[str],
    ranks: int,
) -> int:
    """Return the number of scales in every message with a part of this tensor; 0 for a form without
    scales.

    The number is the same in all deals, so no deal is needed to count bytes. ``groups``: the dealt
    unit groups.
    """
    if form == EXACT or not CODECS[form].scaled:
        return 0
    # decision 18: independent of the deal, so that expected bytes have a closed form.
    messages = ranks ** (parameter.pattern.dealt(groups) + 1)
    return max(parameter.size(lengths) // (VALUES_A_SCALE * messages), 1)


class BlockCodec:
    """Encodes and decodes the blocks of one transfer on one rank. A block's slabs must come in
    order.

    ``sends``: this rank's messages before they are cut; ``tensors``: the tensors with the messages'
    values.
    """

    def __init__(self, key: int, sends: Sequence[Message], tensors: Mapping[str, torch.Tensor]):
        self._key = key
        self._tensors = tensors
        self._whole: dict[tuple[int, str, int], Block] = {}
        """This rank's blocks before they are cut, by `_key`."""
        for peer, message in enumerate(sends):
            for block in message:
                self._whole[_key(peer, block)] = block
        self._sent: dict[tuple[int, str, int], np.ndarray] = {}
        """The exponents of a block's scales, by `_key`. The block's first slab carries them."""
        self._received: dict[tuple[int, str, int], np.ndarray] = {}

    def encode(self, block: Block, rank: int, peer: int, out: np.ndarray) -> None:
        places = block.places()
        values = block.packed(self._tensors[block.name]).reshape(-1).view(np.float32)
        if block.scales and block.is_first:
            if block.cut:
                # The scales are those of the whole block, of which this is the first slab.
                largest = self._largest(peer, block)
            else:
                largest = _largest(values, places, block)
            self._sent[_key(peer, block)] = exponents(largest)
            out[: block.scales] = self._sent[_key(peer, block)]
        by_run = _scales(self._sent.get(_key(peer, block)), block, places)
        # The first piece has the random numbers of a parameter that is not cut.
        key = rng.key(self._key, rank, block.name)
        if block.piece:
            key = rng.key(self._key, rank, block.name, block.piece)
        out[block.scales * block.is_first :] = CODECS[block.form].round(values, key, places, by_run)

    def decode(self, block: Block, peer: int, coded: np.ndarray) -> np.ndarray:
        """Return the values of a block that ``peer`` sent, as int32 with the bits of float32."""
        if block.scales and block.is_first:
            self._received[_key(peer, block)] = coded[: block.scales].copy()
        return self._decode(block, coded, self._received.get(_key(peer, block)))

    def settle(self, block: Block, peer: int, coded: np.ndarray) -> None:
        """Replace a block's values in this rank's tensor by the rounded values that ``peer``
        gets."""
        block.place(
            self._tensors[block.name],
            self._decode(block, coded, self._sent.get(_key(peer, block))),
        )

    def _decode(self, block: Block, coded: np.ndarray, exponents: np.ndarray | None) -> np.ndarray:
        by_run = _scales(exponents, block, block.places())
        values = CODECS[block.form].values(coded[block.scales * block.is_first :], by_run)
        return values.view(np.int32).reshape(block.shape)

    def through(self, block: Block, rank: int) -> np.ndarray:
        """Return the values of a block that stays on this rank, rounded as if it had been sent."""
        coded = np.empty(block.sent_nbytes, np.uint8)
        self.encode(block, rank, rank, coded)
        return self.decode(block, rank, coded)

    def _largest(self, peer: int, block: Block) -> np.ndarray:
        """Return the largest magnitude for each scale of the whole block that ``block`` begins."""
        slabs = self._whole[_key(peer, block)].in_rows(_AT_ONCE)
        parts = ((slab.packed(self._tensors[block.name]), slab) for slab in slabs)
        return reduce(
            np.maximum,
            (_largest(part.reshape(-1).view(np.float32), at.places(), at) for part, at in parts),
        )


def _key(peer: int, block: Block) -> tuple[int, str, int]:
    return peer, block.name, block.piece


def _largest(values: np.ndarray, places: np.ndarray | range, block: Block) -> np.ndarray:
    """Return the largest magnitude for each scale of a block, 0 where it has no value: ``[scale]``
    float32."""
    largest = np.zeros(block.scales, np.float32)
    if len(values):
        groups, counts = _groups(block, places)
        # The sums before each count are the starts of the runs.
        largest[groups] = np.maximum.reduceat(np.abs(values), np.cumsum(counts) - counts)
    return largest


def _groups(block: Block, places: np.ndarray | range) -> tuple[np.ndarray, np.ndarray]:
    """Return the scale number of each run of values that share a scale, and the length of each
    run.

    ``places``: the places of the values in the whole block, ascending.
    """
    # The number of places that share a scale; the last scale may have fewer.
    length = -(-block.elements // block.scales)
    # Without gaps, the ends of the runs follow from the range alone.
    if isinstance(places, range):
        groups = np.arange(places.start // length, -(-places.stop // length))
        ends = np.minimum((groups + 1) * length, places.stop)
        return groups, ends - np.maximum(groups * length, places.start)
    by_value = places // length
    starts = np.flatnonzero(np.diff(by_value, prepend=-1))
    return by_value[starts], np.diff(starts, append=len(places))


def _scales(
    exponents: np.ndarray | None, block: Block, places: np.ndarray | range
) -> Scales | None:
    """Return the scale of each run of values; None if the form has no scales."""
    if not block.scales or exponents is None:
        return None
    groups, counts = _groups(block, places)
    return Scales(exponents[groups], counts)
