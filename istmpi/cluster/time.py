"""Seconds of a round and an epoch: the α-β model, applied to the counts of `istmpi.cost.counts`.

All ranks compute at the same time and wait for the slowest at the end of a round. A link is full
duplex. Only the sender's or the receiver's link can limit a message.
"""

from dataclasses import dataclass, replace
from itertools import zip_longest
from math import inf

from istmpi.cluster.figures import Cluster, Link
from istmpi.cost.counts import PartCost
from istmpi.cost.loads import ALLREDUCE
from istmpi.cost.run_cost import Cost
from istmpi.cost.waits import CALLS_A_ROUND

BACKWARD_SHARE = 2 / 3
"""The backward pass's part of a step; ranks send gradients in buckets during the pass."""
CROWDED = 2.5
"""The measured factor by which an all-reduce takes longer during a backward pass on the same
cores."""
COMPUTING = 0.95
"""The fraction of time that a rank should spend on computing."""


@dataclass(frozen=True)
class RoundTime:
    """The seconds of a round: in local steps, and in transfers and deals that no step hides."""

    compute: float
    transfer: float

    @property
    def total(self) -> float:
        return self.compute + self.transfer


def step_seconds(part: PartCost, cluster: Cluster) -> float:
    """Return the seconds of a local step on the slowest rank of a part."""
    return (
        float(part.flops.products) / cluster.speed(part.part.ranks)
        + part.flops.product_count * cluster.product_seconds
        + float(part.touched) * cluster.touch_seconds_per_byte
        + cluster.step_seconds
    )


@dataclass(frozen=True)
class Exchange:
    """A transfer: seconds that no rate changes, bytes of the busiest rank, and seconds that local
    steps hide."""

    fixed: float
    nbytes: float
    link: Link
    hidden: float

    def waited(self) -> float:
        return max(self.fixed + self.nbytes * self.link.seconds_per_byte - self.hidden, 0)


def exchanges(cost: Cost, cluster: Cluster) -> list[Exchange]:
    step = max(step_seconds(part, cluster) for part in cost.parts)
    exchanged = []
    for load in cost.loads:
        during_backward = cost.spec.sends_every_step and load.link == ALLREDUCE
        hidden_steps = load.steps_behind + BACKWARD_SHARE * during_backward
        # On one host, the all-reduce and the backward pass share cores.
        slower = CROWDED if during_backward and not cluster.beside else 1.0
        link = cluster.find_link(load.link)
        fixed = load.messages * link.latency
        fixed += float(load.handled) * cluster.handle_seconds_per_byte
        fixed += float(load.averaged) * cluster.average_seconds_per_byte
        fixed += cluster.transfer_seconds
        exchanged.append(
            Exchange(
                fixed=slower * fixed,
                nbytes=slower * float(load.busiest),
                link=link,
                hidden=cluster.beside * hidden_steps * step,
            )
        )
    return exchanged


def round_time(cost: Cost, cluster: Cluster) -> RoundTime:
    step = max(step_seconds(part, cluster) for part in cost.parts)
    once = sum(exchange.waited() for exchange in exchanges(cost, cluster))
    between = _deal_seconds(cost, cluster) + CALLS_A_ROUND * cluster.small_call(cost.ranks)
    return RoundTime(cost.local_steps * step, cost.sends * once + between)


def link_rate(cost: Cost, cluster: Cluster, computing: float = COMPUTING) -> float:
    """Return the lowest rate, in bits a second each way, at which ranks compute enough.

    A rank should compute for the fraction ``computing`` of its time. The rate is 0 if nothing is
    sent, and infinite if no rate is enough.
    """
    # Links without latency: the answer is a rate alone.
    no_links = {name: Link(0, 0) for name in cluster.links}
    bare = replace(cluster, links=no_links, call_seconds=0.0)
    compute = cost.local_steps * max(step_seconds(part, bare) for part in cost.parts)
    # The seconds that ranks may wait for each of the round's sends.
    allowed = (compute * (1 - computing) / computing - _deal_seconds(cost, bare)) / cost.sends
    terms = [term for term in exchanges(cost, bare) if term.nbytes]
    if not terms:
        return 0.0
    terms.sort(key=lambda term: (term.hidden - term.fixed) / term.nbytes)
    # The transfers that ranks wait for are those that steps hide least, up to some place in the
    # list.
    nbytes = 0.0
    room = 0.0
    for term, following in zip_longest(terms, terms[1:]):
        nbytes += term.nbytes
        room = room + term.hidden - term.fixed
        seconds_a_byte = (allowed + room) / nbytes
        if (
            following is None
            or seconds_a_byte <= (following.hidden - following.fixed) / following.nbytes
        ):
            break
    if seconds_a_byte <= 0:
        return inf
    return 8 / seconds_a_byte  # bits


def _deal_seconds(cost: Cost, cluster: Cluster) -> float:
    if cost.spec.sends_every_step:
        return 0.0
    return cluster.deal_seconds


def epoch_seconds(cost: Cost, cluster: Cluster, examples: int) -> float:
    rounds = examples / float(cost.local_steps * cost.examples_per_step)
    return rounds * round_time(cost, cluster).total
