"""The expected load of a leg (`istmpi.engine.route.Leg`) on network and memory, in closed form over
deals.

Sizes are bytes. The busiest rank's messages and bytes decide the time, if all ranks send at full
rate.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

from istmpi.comm import STAGING_BYTES, ring
from istmpi.comm.codec import Wire
from istmpi.cost.deal import ExpectedDeal
from istmpi.cost.holdings import Holdings
from istmpi.engine.axes import with_slots
from istmpi.engine.lengths import Number
from istmpi.engine.packed_sizes import Largest, float4_bytes, top_k_bytes
from istmpi.engine.route import (
    FRAGMENT,
    GATHER,
    HOP,
    MEAN,
    PULL,
    PUSH,
    SPREAD,
    Leg,
    Parameters,
    Route,
)

ALLTOALLV = "alltoallv"
ALLREDUCE = "allreduce"
ALLGATHER = "allgather"
SERVER = "server"
"""The leg of a rival (`istmpi.cost.rivals`): rank 0 gets the values of all ranks, and sends its own
to them."""
PACKING = 60
"""The time to convert a network to 4 bits and back; a copy takes 1."""
PICKING = 65
"""The time to pick and pack a network's largest values; a copy takes 1."""


@dataclass(frozen=True)
class Load:
    link: str
    """The link of a cluster (alltoallv, allreduce or allgather) whose measured speed gives the
    time."""
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
    steps_behind: int = 0
    """The number of local steps during which it is sent."""

    def once_in(self, rounds: int) -> "Load":
        """Return a round's part of a load that ranks have once in ``rounds`` rounds. Its memory
        stays."""
        return replace(
            self,
            sent=Fraction(self.sent, rounds),
            messages=-(-self.messages // rounds),
            busiest=Fraction(self.busiest, rounds),
            handled=Fraction(self.handled, rounds),
            averaged=Fraction(self.averaged, rounds),
        )

    def then(self, later: "Load") -> "Load":
        """Return this load and a ``later`` one as one load."""
        return replace(
            self,
            sent=self.sent + later.sent,
            messages=self.messages + later.messages,
            busiest=self.busiest + later.busiest,
            handled=self.handled + later.handled,
            averaged=self.averaged + later.averaged,
            buffers=max(self.buffers, later.buffers),
        )


def later_legs(route: Route, parameters: Parameters) -> list[Leg]:
    """Return the legs of a later round in which all is sent that is ever sent after the first."""
    return _steady(route).legs(parameters, 1, fresh=False)


def first_legs(route: Route, parameters: Parameters) -> list[Leg]:
    """Return the legs of the only round of a run; otherwise as `later_legs`."""
    return replace(_steady(route), early=0).legs(parameters, 0, fresh=True)


def _steady(route: Route) -> Route:
    # One round then has the legs of all rounds, whatever is sent in some of them only.
    return replace(route, every=1, since=0, last=())


def round_loads(route: Route, parameters: Parameters, deal: ExpectedDeal) -> list[Load]:
    """Return the expected loads of a round.

    Legs that are under way during the same local steps are one load.
    """
    waited: list[Load] = []
    hidden: dict[range, Load] = {}
    for leg in later_legs(route, parameters):
        load = expect_load(leg, deal)
        if leg.name == MEAN:
            # `later_legs` has a mean in every round.
            load = load.once_in(route.every)
        if not leg.during:
            waited.append(load)
        elif leg.during in hidden:
            hidden[leg.during] = hidden[leg.during].then(load)
        else:
            hidden[leg.during] = replace(load, steps_behind=len(leg.during))
    return [*waited, *hidden.values()]


def count_start_bytes(route: Route, parameters: Parameters, deal: ExpectedDeal) -> Number:
    """Return the expected bytes of the first round of a run minus those of a later round."""
    first = sum(expect_load(leg, deal).sent for leg in first_legs(route, parameters))
    return first - sum(expect_load(leg, deal).sent for leg in later_legs(route, parameters))


def count_flush_bytes(route: Route, parameters: Parameters, deal: ExpectedDeal) -> Number:
    """Return the expected bytes that bring the newest values to their owners, for an evaluation
    after a round with a mean."""
    moved = with_slots(parameters, route.slots)
    legs = replace(route, every=1).flushed(moved, 0)
    return sum(push(deal.holdings(leg.parameters)).sent for leg in legs)


def expect_load(leg: Leg, deal: ExpectedDeal) -> Load:
    """Return the expected load of sending a leg once."""
    # decision 74: the legs are those of training; `leg_bytes` counts them for a drawn deal.
    exact = _load(leg, deal, "float32")
    if not isinstance(leg.wire, Wire):
        return exact
    # Ranks copy and average values of full size; only messages have coded values.
    coded = _load(leg, deal, leg.wire.kind)
    return replace(coded, handled=exact.handled, averaged=exact.averaged)


def _load(leg: Leg, deal: ExpectedDeal, wire: str) -> Load:
    held = deal.holdings(
        leg.parameters, after_a_deal=leg.name == HOP or leg.exclude is not None, wire=wire
    )
    if isinstance(leg.wire, Largest):
        return _largest(held, leg.wire.top)
    if leg.name == HOP:
        return _hop(held, deal.largest_subnet)
    return _BY_NAME[leg.name](held)


def _limit(nbytes: Number, limit: int) -> Number:
    """Return the smaller number. Larger messages pass a buffer of ``limit`` bytes in pieces."""
    return min(nbytes, limit)


def _count_messages(held: Holdings, nbytes: Number) -> int:
    """Return the messages of a rank to all others; 0 if nothing moves, as where no unit changes
    ranks."""
    if not nbytes:
        return 0
    return held.ranks - 1


def pull(held: Holdings) -> Load:
    """Return the load of a pull: owners send ranks what these are dealt."""
    # One P-th of what a rank fetches or serves is its own, and is not sent.
    elsewhere = 1 - Fraction(1, held.ranks)
    fetched: Number = max(held.owner_bytes(part) for part in held.parts)
    inward = fetched * elsewhere
    outward = held.served_bytes * elsewhere
    busiest = max(inward, outward)
    return Load(
        ALLTOALLV,
        sent=held.fetched_bytes,
        messages=_count_messages(held, busiest),
        busiest=busiest,
        handled=inward + outward + Fraction(fetched, held.ranks),
        buffers=_limit(inward, STAGING_BYTES) + _limit(outward, STAGING_BYTES),
    )


def push(held: Holdings) -> Load:
    """Return the load of a push: the same bytes as a pull, the other way; owners take means."""
    return replace(pull(held), averaged=held.averaged_bytes)


def _hop(held: Holdings, subnet: Number) -> Load:
    """Return the load of a hop. A rank copies its whole ``subnet`` to host memory, and the next one
    from there."""
    moved: Number = max(held.hop_bytes(part) for part in held.parts)
    return Load(
        ALLTOALLV,
        sent=sum(len(part.ranks) * held.hop_bytes(part) for part in held.parts),
        messages=_count_messages(held, moved),
        busiest=moved,
        handled=moved + 2 * subnet,
        buffers=2 * _limit(moved, STAGING_BYTES),
    )


def _mean(held: Holdings) -> Load:
    """Return the load of a mean by a ring all-reduce."""
    # Twice round the ring: to add up, and to spread the sums.
    sent = 2 * (held.ranks - 1) * held.ring_bytes
    return Load(
        ALLREDUCE,
        sent=sent,
        messages=ring.count_waits(held.ring_bytes, held.ranks),
        busiest=Fraction(sent, held.ranks),
        buffers=_limit(
            Fraction(held.network_bytes, held.ranks), ring.SEGMENTS_AT_ONCE * ring.CHUNK_BYTES
        ),
    )


def _fragment(held: Holdings) -> Load:
    once_round = ring.count_once_round(held.network_elements, held.ranks, float4_bytes)
    sent = 2 * (held.ranks - 1) * once_round
    return Load(
        ALLREDUCE,
        sent=sent,
        messages=ring.count_waits(once_round, held.ranks),
        busiest=Fraction(sent, held.ranks),
        handled=PACKING * held.network_bytes,
    )


def _largest(held: Holdings, top: int) -> Load:
    message = top_k_bytes(
        top, [parameter.size(held.lengths) for parameter in held.parameters.values()]
    )
    busiest = (held.ranks - 1) * message
    return Load(
        ALLGATHER,
        sent=held.ranks * busiest,
        messages=held.ranks - 1,
        busiest=busiest,
        handled=PICKING * held.network_bytes,
        buffers=held.ranks * message,
    )


def _gather(held: Holdings) -> Load:
    # Each rank sends its network to every other rank.
    busiest = (held.ranks - 1) * held.network_bytes
    return Load(
        ALLGATHER,
        sent=held.ranks * busiest,
        messages=held.ranks - 1,
        busiest=busiest,
        handled=2 * busiest,
        buffers=busiest,
    )


def _spread(held: Holdings) -> Load:
    # The rank with the values sends them to every other rank.
    sent = (held.ranks - 1) * held.network_bytes
    return Load(ALLTOALLV, sent=sent, messages=held.ranks - 1, busiest=sent)


def _server(held: Holdings) -> Load:
    # Rank 0 is the busiest: all messages go in or out there.
    sent = 2 * (held.ranks - 1) * held.network_bytes
    return Load(ALLTOALLV, sent=sent, messages=2 * (held.ranks - 1), busiest=sent)


_BY_NAME = {
    PULL: pull,
    PUSH: push,
    MEAN: _mean,
    FRAGMENT: _fragment,
    GATHER: _gather,
    SPREAD: _spread,
    SERVER: _server,
}
