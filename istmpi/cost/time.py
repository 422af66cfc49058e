"""Seconds of a round and an epoch: the α-β model on what `istmpi.cost.counts` counted.

Ranks compute at the same time and meet at the end of the round, so the slowest counts. A link is full duplex, and
nothing but the ends of a message is ever the bottleneck.
"""

from dataclasses import dataclass

from istmpi.cost.cluster import Cluster
from istmpi.cost.counts import Cost, PartCost

BACKWARD_SHARE = 2 / 3
"""Of a step's time; what is sent in buckets while it runs hides behind it."""


@dataclass(frozen=True)
class RoundTime:
    """Seconds of one round."""

    compute: float
    transfer: float
    """What is not hidden behind computing."""

    @property
    def total(self) -> float:
        return self.compute + self.transfer


def step_seconds(part: PartCost, cluster: Cluster) -> float:
    """One local step of the slowest of these ranks."""
    return (
        float(part.flops.products) / cluster.speed(part.part.ranks)
        + part.flops.product_count * cluster.product_seconds
        + float(part.touched) * cluster.touch_seconds_per_byte
        + cluster.step_seconds
    )


def round_time(cost: Cost, cluster: Cluster) -> RoundTime:
    """One round: J local steps, and all that is sent in them."""
    step = max(step_seconds(part, cluster) for part in cost.parts)
    once = 0.0
    for load in cost.loads:
        link = cluster.links[load.link]
        once += load.messages * link.latency
        once += float(load.busiest * cost.tensors) * link.seconds_per_byte
        once += float(load.handled * cost.tensors) * cluster.handle_seconds_per_byte
        once += float(load.averaged * cost.tensors) * cluster.average_seconds_per_byte
        once += cluster.transfer_seconds
    if cost.spec.overlaps:
        once = max(once - BACKWARD_SHARE * step * cost.local_steps / cost.sends, 0)
    deal = 0.0 if cost.spec.synchronous else cluster.deal_seconds
    return RoundTime(cost.local_steps * step, cost.sends * once + deal)


def epoch_seconds(cost: Cost, cluster: Cluster, examples: int) -> float:
    """The time in which all ranks together consume so many examples."""
    rounds = examples / float(cost.local_steps * cost.examples_per_step)
    return rounds * round_time(cost, cluster).total
