"""Measures the speed of a cluster whose ranks are replica groups. Collective in the job.

All processes compute at once, each a part of its group's batches. Leaders alone measure the links
between groups. Members measure the link inside a group by all-reduces, as in their local steps.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from istmpi.cluster import timing
from istmpi.cluster.figures import Cluster
from istmpi.cluster.links import MESSAGE_BYTES, Point, fit_link
from istmpi.cluster.measure import (
    choose_device_and_threads,
    measure_beside,
    measure_computing,
)
from istmpi.comm import find_members
from istmpi.comm.groups import Membership
from istmpi.config import Run
from istmpi.cost.members import divide_batch
from istmpi.engine.replica_group import ReplicaGroup, join_group
from istmpi.errors import IstmpiError
from istmpi.network.architecture import Architecture
from istmpi.units import counted


def measure_groups(run: Run, architecture: Architecture, membership: Membership) -> Cluster:
    """Measure this job's groups with the shapes of the run's subnets; return the same result on
    every process."""
    world = membership.world
    members = membership.largest
    device, threads = choose_device_and_threads(run.train, world)
    run = run.override({"train.threads": threads})
    group = join_group(membership, device)
    cluster = _measure_between(divide_batch(run, members), architecture, membership, device)
    if group is None:
        return cluster
    inside, points = fit_link(list(_all_reduces(group, members, device)))
    hosts = len({process.host for process in find_members(world)})
    groups = counted(membership.groups, "replica group")
    return replace(
        cluster,
        name=f"{groups} of {members} on {counted(hosts, 'host')}",
        inside=inside,
        measured={**cluster.measured, "inside": points},
    )


def _measure_between(
    run: Run, architecture: Architecture, membership: Membership, device: torch.device
) -> Cluster:
    """Return the figures of groups whose members each train the batch of ``run``, without the link
    inside a group."""
    run = run.override({"train.group_size": 1})
    world = membership.world
    cluster: Cluster | None = None
    if membership.leads:
        try:
            cluster = measure_beside(run, architecture, membership.communicator, world, device)
        except IstmpiError as error:
            # Other members do not know of it, so this process must end the job.
            error.everywhere = False
            raise
    else:
        measure_computing(run, architecture, membership.groups, world, device)
    cluster = membership.inside.broadcast_from_root(cluster)
    assert cluster is not None, "a leader has measured"
    return cluster


def _all_reduces(group: ReplicaGroup, members: int, device: torch.device) -> Iterator[Point]:
    """Yield the measured all-reduces of the largest groups, of so many ``members``."""
    for size in MESSAGE_BYTES:
        values = torch.zeros(size // 4, device=device)  # float32
        work = partial(group.average, values)
        seconds = timing.time_slowest(group.membership.world, work)
        # A ring: N-1 messages to add up and N-1 to spread, each 1/N of the values.
        messages = 2 * (members - 1)
        yield Point(messages=messages, nbytes=messages / members * size, seconds=seconds)
