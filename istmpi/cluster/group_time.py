"""Seconds of a round of replica groups, with two networks: a fast one between the members of a
group, and the cluster's links between groups.

Members compute as ranks whose batch is a part of the group's. They add up gradients in a ring
during the backward pass, and hear of each step from their leader.
"""

from dataclasses import replace

from istmpi.cluster.figures import Cluster, Link
from istmpi.cluster.time import BACKWARD_SHARE, CROWDED, RoundTime, round_time, step_seconds
from istmpi.comm.at_once import count_trips
from istmpi.config import Run
from istmpi.cost.members import (
    NormalisedTogether,
    count_normalised_together,
    count_shared_copies,
    divide_batch,
)
from istmpi.cost.run_cost import Cost, cost
from istmpi.network.architecture import Architecture


def time_rounds(run: Run, architecture: Architecture, counted: Cost, cluster: Cluster) -> RoundTime:
    """Return the seconds of a round of the cost ``counted``, in replica groups if the run has any
    of a known size."""
    members = run.train.group_size
    if members < 2:
        return round_time(counted, cluster)
    of_member = cost(divide_batch(run, members), architecture, counted.ranks, counted.method)
    of_member = replace(of_member, local_steps=counted.local_steps)
    time = round_time(of_member, cluster)
    hops = (members - 1).bit_length()
    inside = cluster.inside
    # The leader gives its members values at the round's beginning, and some methods in each step.
    slots = len(counted.spec.optimizer_slots(run))
    copies = count_shared_copies(counted.spec, slots, counted.local_steps)
    shared = hops * float(copies * counted.largest.memory.network) * inside.seconds_per_byte
    waits = count_trips(members) * inside.latency + _wait_for_gradients(of_member, members, cluster)
    lengths = of_member.largest.part.lengths
    sums = count_normalised_together(architecture, lengths, run.train.sync_batch_norm)
    waits += _wait_for_moments(sums, members, inside)
    steps = counted.local_steps * waits
    return RoundTime(time.compute + steps, time.transfer + shared)


def _wait_for_gradients(of_member: Cost, members: int, cluster: Cluster) -> float:
    """Return the seconds of an all-reduce in a group that the backward pass does not hide."""
    inside = cluster.inside
    step = max(step_seconds(part, cluster) for part in of_member.parts)
    seconds = _add_up(float(of_member.largest.memory.network), members, inside)
    # Where ranks share a host, the all-reduce and the backward pass share its cores.
    if not cluster.beside:
        return CROWDED * seconds
    return max(seconds - BACKWARD_SHARE * step, 0.0)


def _wait_for_moments(sums: NormalisedTogether, members: int, inside: Link) -> float:
    """Return the seconds of a step in which members add up what batch normalisations need.

    Layers compute with the sums, so nothing hides these waits.
    """
    all_reduces = sums.ALL_REDUCES * float(sums.layers)
    # Each all-reduce has its own latency; their bytes are known together.
    latency = all_reduces * _add_up(0.0, members, inside)
    return latency + _add_up(float(sums.nbytes), members, replace(inside, latency=0.0))


def _add_up(nbytes: float, members: int, inside: Link) -> float:
    """Return the seconds of an all-reduce in a ring of members."""
    sent = 2 * (members - 1) / members * nbytes
    return 2 * (members - 1) * inside.latency + sent * inside.seconds_per_byte
