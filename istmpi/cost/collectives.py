"""The ways in which ranks send each other parameters, and their load on network and memory.

A pull goes from owners to holders (the ranks that train), a push goes back to owners, a hop goes to
the next holders. Sizes are bytes, with one tensor for each parameter. The busiest rank's messages
and bytes decide the time, if all ranks send at full rate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np

from istmpi.comm import STAGING_BYTES, ring
from istmpi.comm.codec import Wire
from istmpi.config import Run
from istmpi.cost.holdings import Holdings, Number
from istmpi.cost.pairs import leg_bytes
from istmpi.engine.axes import Parameter, bytes_of
from istmpi.engine.fragments import departures
from istmpi.engine.layout import Owners, Replicated
from istmpi.engine.packed_sizes import float4_bytes, top_k_bytes
from istmpi.engine.route import Leg
from istmpi.methods import spec_of

PACKING, PICKING = 60, 65
"""The times to convert a network to 4 bits and back, and to pick and pack its largest values; a
copy takes 1."""


@dataclass(frozen=True)
class Load:
    link: str
    """The link of a cluster (alltoallv or allreduce) whose measured speed gives the time."""
    sent: Number
    """Bytes that all ranks hand to the network: the expectation over deals."""
    messages: int
    """Messages of the busiest rank, one after the other."""
    busiest: Number
    """Bytes into or out of the busiest rank, whichever are more."""
    handled: Number = 0
    """Bytes that the busiest rank packs, unpacks or copies."""
    averaged: Number = 0
    """Bytes of copies that the busiest rank averages."""
    buffers: Number = 0
    """Bytes of memory in addition to the tensors themselves."""
    parts: tuple[Number, ...] = (1,)
    """Fractions of the load that are sent one after the other, each while local steps run."""
    steps_behind: int = 0
    """The number of local steps during which each of ``parts`` is sent."""


@dataclass(frozen=True)
class Collective:
    """A way of sending parameters: its expected load and, for some ways, the exact bytes."""

    load: Callable[[Holdings], Load | None]
    """A function that returns the load of sending once, or None if the run does not send in this
    way."""
    sent: Callable[[Mapping[str, Parameter], Owners, str], np.ndarray] | None = None
    """A function that returns the bytes that each rank hands to MPI to send the whole network:
    ``[rank]`` int64."""


def _pull(held: Holdings) -> Load:
    elsewhere = 1 - Fraction(1, held.ranks)
    fetched = max(held.owner_bytes(part) for part in held.parts)
    inward, outward = fetched * elsewhere, held.served_bytes * elsewhere
    return Load(
        "alltoallv",
        sent=held.fetched_bytes,
        messages=held.ranks - 1,
        busiest=max(inward, outward),
        handled=inward + outward + Fraction(fetched, held.ranks),
        buffers=min(inward, STAGING_BYTES) + min(outward, STAGING_BYTES),
    )


def _push(held: Holdings) -> Load:
    return replace(_pull(held), averaged=held.averaged_bytes)


def _hop(held: Holdings) -> Load | None:
    if held.redeal is None:
        return None
    moved = max(held.hop_bytes(part) for part in held.parts)
    return Load(
        "alltoallv",
        sent=sum(len(part.ranks) * held.hop_bytes(part) for part in held.parts),
        messages=held.ranks - 1,
        busiest=moved,
        handled=moved + 2 * held.largest_bytes,
        buffers=2 * min(moved, STAGING_BYTES),
    )


def beside_steps(loads: Sequence[Load], local_steps: int, early: int) -> list[Load]:
    """Return IST's loads with method.delay: holders send in the last ``early`` local steps, owners
    in earlier ones."""
    pull, hop, push, *rest = loads
    return [
        replace(pull, steps_behind=local_steps - early),
        Load(
            push.link,
            hop.sent + push.sent,
            hop.messages + push.messages,
            hop.busiest + push.busiest,
            hop.handled + push.handled,
            hop.averaged + push.averaged,
            max(hop.buffers, push.buffers),
            steps_behind=early,
        ),
        *rest,
    ]


def _server(held: Holdings) -> Load:
    sent = 2 * (held.ranks - 1) * held.network_bytes
    return Load("alltoallv", sent, messages=2 * (held.ranks - 1), busiest=sent)


def _ring(held: Holdings) -> Load:
    return _round_a_ring(held.network_bytes, held.ranks, held.wired_bytes(held.parameters))


def _round_a_ring(nbytes: int, ranks: int, wired: int) -> Load:
    sent = 2 * (ranks - 1) * wired
    buffers = min(Fraction(nbytes, ranks), ring.SEGMENTS_AT_ONCE * ring.CHUNK_BYTES)
    return Load(
        "allreduce", sent, messages=2 * (ranks - 1), busiest=Fraction(sent, ranks), buffers=buffers
    )


def _share(run: Run, held: Holdings) -> Load | None:
    """Return a round's part of the load of averaging undealt parameters; None if ranks do not
    average them."""
    if not held.shared_every:
        return None
    every, spec = held.shared_every, spec_of(run.method.name)
    if spec.sends_largest(run):
        load = _largest(run).load(held, held.shared)
        every *= spec.moved(run) if spec.wire(run) == "float32" else 1  # slots stay where they are
    else:
        load = _round_a_ring(held.shared_bytes, held.ranks, held.wired_bytes(held.shared))
    return replace(
        load,
        sent=Fraction(load.sent, every),
        messages=-(-load.messages // every),
        busiest=Fraction(load.busiest, every),
    )


def _all_gather(held: Holdings) -> Load:
    busiest = (held.ranks - 1) * held.network_bytes
    return Load(
        "alltoallv",
        held.ranks * busiest,
        held.ranks - 1,
        busiest,
        handled=2 * busiest,
        buffers=busiest,
    )


def _leg(name: str) -> Callable[[Mapping[str, Parameter], Owners, str], np.ndarray]:
    """Return a function that counts the bytes each rank sends in a pull or push of whole copies, or
    in a mean."""

    def sent(parameters: Mapping[str, Parameter], owners: Owners, wire: str) -> np.ndarray:
        everyone = Replicated(owners.lengths, owners.ranks)
        ends = {"pull": (owners, everyone), "push": (everyone, owners), "mean": ()}[name]
        leg = Leg(name, parameters, *ends, wire=Wire(wire, 0) if name == "mean" else None)
        return leg_bytes(leg, owners.ranks, owners.lengths)

    return sent


def _gathered(parameters: Mapping[str, Parameter], owners: Owners, wire: str) -> np.ndarray:
    return np.full(owners.ranks, (owners.ranks - 1) * bytes_of(parameters, owners.lengths))


def _fragments(run: Run) -> Collective:
    settings = run.method
    behind = spec_of(settings.name).delay(run)

    def elements(parameters: Mapping[str, Parameter], lengths: Mapping[str, int]) -> list[int]:
        parts = departures(parameters, settings.fragments, settings.local_steps, behind)
        return [sum(parameters[name].size(lengths) for name in part.names) for part in parts]

    def load(held: Holdings) -> Load:
        counts = elements(held.parameters, held.lengths)
        sent = [
            2 * (held.ranks - 1) * ring.once_round_of(count, held.ranks, float4_bytes)
            for count in counts
        ]
        total = sum(sent)
        return Load(
            "allreduce",
            total,
            messages=2 * (held.ranks - 1) * len(sent),
            busiest=Fraction(total, held.ranks),
            handled=PACKING * held.network_bytes,
            parts=tuple(Fraction(part, total) for part in sent) if total else (1,),
            steps_behind=behind,
        )

    def sent(parameters: Mapping[str, Parameter], owners: Owners, wire: str) -> np.ndarray:
        counts = elements(parameters, owners.lengths)
        return np.array([ring.sent_of(count, owners.ranks, float4_bytes) for count in counts]).sum(
            axis=0
        )

    return Collective(load, sent)


def _largest(run: Run) -> Collective:

    def message(parameters: Mapping[str, Parameter], lengths: Mapping[str, int]) -> int:
        return top_k_bytes(
            run.method.top, [parameter.size(lengths) for parameter in parameters.values()]
        )

    def load(held: Holdings, parameters: Mapping[str, Parameter] | None = None) -> Load:
        parameters = held.parameters if parameters is None else parameters
        nbytes = message(parameters, held.lengths)
        busiest, handled = (held.ranks - 1) * nbytes, PICKING * bytes_of(parameters, held.lengths)
        return Load(
            "alltoallv",
            held.ranks * busiest,
            held.ranks - 1,
            busiest,
            handled,
            buffers=held.ranks * nbytes,
        )

    def sent(parameters: Mapping[str, Parameter], owners: Owners, wire: str) -> np.ndarray:
        return np.full(owners.ranks, (owners.ranks - 1) * message(parameters, owners.lengths))

    return Collective(load, sent)


PULL = Collective(_pull, _leg("pull"))
HOP = Collective(_hop)

COLLECTIVES: dict[str, Callable[[Run], Collective]] = {
    "pull": lambda run: PULL,
    "push": lambda run: Collective(_push, _leg("push")),
    "hop": lambda run: HOP,
    "server": lambda run: Collective(_server),
    "share": lambda run: Collective(partial(_share, run)),
    "all-reduce": lambda run: Collective(_ring, _leg("mean")),
    "all-gather": lambda run: Collective(_all_gather, _gathered),
    "fragments": _fragments,
    "largest": _largest,
}
