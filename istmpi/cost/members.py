"""Counts what the members of replica groups send to each other, and the memory of a member."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from istmpi.cost.counts import PROCESS, Memory
from istmpi.cost.run_cost import cost
from istmpi.engine.lengths import Number
from istmpi.optim.optimizers import choose_optimizer

if TYPE_CHECKING:
    from istmpi.config import Run
    from istmpi.network.architecture import Architecture

COMPILER = 78_000_000
"""Bytes of PyTorch's compiler, which DistributedDataParallel imports; measured."""


@dataclass(frozen=True)
class GroupCost:
    """The cost that replica groups add to a run's first phase."""

    members: int
    """The processes of a group."""
    round_bytes: Number
    """Bytes that all groups together send inside in a round."""
    leader: Memory
    """The memory of the leader of the largest rank."""
    member: Memory
    """The memory of another member."""


def count_group(
    run: Run, architecture: Architecture, ranks: int, members: int, local_steps: int
) -> GroupCost:
    """Return the cost of ``ranks`` groups of several members, which take ``local_steps`` in a
    round."""
    member_run = run.override({"train.batch": ceil(run.train.batch / members)})
    counted = cost(member_run, architecture, ranks)
    subnets = sum(len(part.part.ranks) * part.memory.network for part in counted.parts)
    subnets *= counted.held.taking_part
    state = 0
    if counted.spec.keeps_optimizer(run):
        state = len(choose_optimizer(run.optimizer).slots)
    # A leader sends what a round begins with to each other member.
    sent = (1 + state) * subnets
    # Each of N members sends 2 (N-1) / N of all gradients in a step.
    sent += 2 * local_steps * subnets
    if counted.spec.changes_gradients:
        sent += local_steps * subnets
    if counted.spec.delay_by_default:
        # All fragments arrive between steps.
        sent += subnets
    memory = counted.largest.memory
    # Buckets keep the gradients' memory from step to step.
    kept = memory.gradients
    leader = replace(memory, gradients=0, copies=memory.copies + kept, process=PROCESS + COMPILER)
    return GroupCost(
        members=members,
        round_bytes=(members - 1) * sent,
        leader=leader,
        member=replace(leader, owned=0, copies=kept, buffers=0, evaluation=0),
    )
