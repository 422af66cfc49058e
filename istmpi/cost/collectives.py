"""The ways in which ranks send each other parameters, each with what one use of it asks of network and memory.

Sizes are those of one tensor for every parameter, in bytes. ``sent`` leaves out what stays on its rank. Latencies and
bytes are those of the busiest rank, of a network in which every rank sends and receives at full rate at the same time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from istmpi import ring
from istmpi.axes import Parameter
from istmpi.comm import STAGING_BYTES
from istmpi.cost.holdings import Holdings, Number
from istmpi.cost.pairs import pair_bytes
from istmpi.layout import Layout, Owners


@dataclass(frozen=True)
class Load:
    """What one use of a collective asks for."""

    link: str
    """Which of a cluster's measured links it is timed by: alltoallv | allreduce."""
    sent: Number
    """Bytes that all ranks hand to the network, expected over deals."""
    messages: int
    """Messages of the busiest rank, one after the other."""
    busiest: Number
    """Bytes in or out of the busiest rank, whichever are more."""
    handled: Number = 0
    """Bytes that the busiest rank copies on the way: packs, unpacks, or moves within its own memory."""
    averaged: Number = 0
    """Bytes of copies that the busiest rank takes the mean of."""
    buffers: Number = 0
    """Bytes beside the tensors themselves."""


@dataclass(frozen=True)
class Collective:
    """A way of sending: its load in general, and for one that istmpi runs the exact bytes of a given deal."""

    load: Callable[[Holdings], Load]
    sent: Callable[[Mapping[str, Parameter], Owners, Layout], np.ndarray] | None = None
    """Bytes that each rank hands to MPI, given who owns and who holds: ``[rank]`` int64."""


def _pull(held: Holdings) -> Load:
    """Owners to holders: each rank's network in pieces from all others (`istmpi.transfer`)."""
    elsewhere = 1 - Fraction(1, held.ranks)
    inward, outward = held.largest_bytes * elsewhere, held.served_bytes * elsewhere
    return Load(
        "alltoallv",
        sent=held.held_bytes - held.kept_bytes,
        messages=held.ranks - 1,
        busiest=max(inward, outward),
        handled=inward + outward + Fraction(held.largest_bytes, held.ranks),
        buffers=min(inward, STAGING_BYTES) + min(outward, STAGING_BYTES),
    )


def _push(held: Holdings) -> Load:
    """Holders to owners, who take the mean where all ranks hold."""
    return replace(_pull(held), averaged=held.averaged_bytes)


def _hop(held: Holdings) -> Load:
    """Holders straight to the next deal's holders, and what nobody holds next home to its owner.

    An element is held by some rank with probability h, and new holders are drawn independently of the old ones. So the
    next holder gets it from the old one (h) or from its owner (1 - h), and it goes home with probability h (1 - h).
    """
    sent = Fraction(0)
    for parameter in held.parameters.values():
        rows = parameter.pattern.axes[0].length(held.lengths)
        elements = parameter.size(held.lengths)
        odds = [(part, Fraction(parameter.size(part.lengths)) / elements) for part in held.parts]
        if not parameter.pattern.dealt(dict.fromkeys(held.groups)):
            # Held by all: its mean must be taken, as a push and a pull do.
            sent += 2 * (held.ranks - 1) * elements * parameter.itemsize
            continue
        somebody = sum(len(part.ranks) * odd for part, odd in odds)
        nobody = 1 - somebody
        for part, odd in odds:
            first, stop = part.ranks.start, part.ranks.stop
            owned = Fraction(rows * stop // held.ranks - rows * first // held.ranks, rows)
            arrives = len(part.ranks) * odd * (1 - odd) - odd * nobody * owned
            goes_home = odd * nobody * (len(part.ranks) - owned)
            sent += (arrives + goes_home) * elements * parameter.itemsize
    busiest = sent / held.ranks
    return replace(
        _pull(held), sent=sent, busiest=busiest, handled=2 * busiest + Fraction(held.largest_bytes, held.ranks)
    )


def _server(held: Holdings) -> Load:
    """Rank 0 collects all gradients, then sends all weights: what the paper counts, one way, for data parallel."""
    sent = 2 * (held.ranks - 1) * held.network_bytes
    return Load("alltoallv", sent, messages=2 * (held.ranks - 1), busiest=sent)


def _ring(held: Holdings) -> Load:
    """Ring all-reduce (`istmpi.ring`): reduce-scatter, then all-gather, a P-th of the network at a time."""
    sent = 2 * (held.ranks - 1) * held.network_bytes
    buffers = min(Fraction(held.network_bytes, held.ranks), ring.SEGMENTS_AT_ONCE * ring.CHUNK_BYTES)
    busiest = Fraction(sent, held.ranks)
    return Load("allreduce", sent, messages=2 * (held.ranks - 1), busiest=busiest, buffers=buffers)


def _halving_doubling(held: Holdings) -> Load:
    """Recursive halving and doubling: the bytes of a ring in 2 log2 P messages."""
    sent = 2 * (held.ranks - 1) * held.network_bytes
    messages = 2 * (held.ranks - 1).bit_length()
    return Load("allreduce", sent, messages, busiest=Fraction(sent, held.ranks))


def _all_gather(held: Holdings) -> Load:
    """Every rank's network to all others."""
    busiest = (held.ranks - 1) * held.network_bytes
    return Load("alltoallv", held.ranks * busiest, held.ranks - 1, busiest, handled=2 * busiest, buffers=busiest)


def _pulled(parameters: Mapping[str, Parameter], owners: Owners, deal: Layout) -> np.ndarray:
    moved = pair_bytes(parameters, owners, deal)
    return moved.sum(axis=1) - moved.diagonal()


def _pushed(parameters: Mapping[str, Parameter], owners: Owners, deal: Layout) -> np.ndarray:
    moved = pair_bytes(parameters, deal, owners)
    return moved.sum(axis=1) - moved.diagonal()


def _reduced(parameters: Mapping[str, Parameter], owners: Owners, deal: Layout) -> np.ndarray:
    elements = {name: one.size(owners.lengths) for name, one in parameters.items()}
    itemsize = next(iter(parameters.values())).itemsize
    return np.array(ring.sent_bytes(elements, itemsize, owners.ranks))


def _gathered(parameters: Mapping[str, Parameter], owners: Owners, deal: Layout) -> np.ndarray:
    network = sum(one.size(owners.lengths) * one.itemsize for one in parameters.values())
    return np.full(owners.ranks, (owners.ranks - 1) * network)


PULL = Collective(_pull, _pulled)
PUSH = Collective(_push, _pushed)
HOP = Collective(_hop)
SERVER = Collective(_server)
RING = Collective(_ring, _reduced)
ALL_GATHER = Collective(_all_gather, _gathered)
HALVING_DOUBLING = Collective(_halving_doubling)
