"""Counts what the members of replica groups send to each other, and the memory of a member."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, ClassVar

from istmpi.cost.counts import PROCESS, Amount, Memory
from istmpi.cost.run_cost import Cost, cost
from istmpi.engine.axes import count_bytes
from istmpi.engine.lengths import Number

if TYPE_CHECKING:
    from istmpi.config import Run
    from istmpi.config.spec import MethodSpec
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
    evaluation_bytes: Number | None
    """Bytes that all groups together send inside in an evaluation; None if that is not known before
    the run."""
    leader: Memory
    """The memory of the leader of the largest rank."""
    member: Memory
    """The memory of another member."""


def divide_batch(run: Run, members: int) -> Run:
    """Return the run with the batch of the member that takes most of it."""
    return run.override({"train.batch": ceil(run.train.batch / members)})


def count_shared_copies(spec: MethodSpec, slots: int, local_steps: int) -> int:
    """Return how often a leader gives each other member the bytes of its subnet in a round.
    ``slots``: the kinds of optimizer slots that are kept between rounds."""
    copies = 1 + slots
    if spec.changes_gradients:
        copies += local_steps
    if spec.delay_by_default:
        # All fragments arrive between steps.
        copies += 1
    return copies


def count_group(
    run: Run,
    architecture: Architecture,
    ranks: int,
    members: int,
    local_steps: int,
    evaluating: int | None = None,
    passed: Amount = 0,
    method: str | None = None,
) -> GroupCost:
    """Return the cost of ``ranks`` groups of several members, which take ``local_steps`` in a
    round.

    ``evaluating``: the groups whose members get the full network in an evaluation; None if that is
    not known. ``passed``: bytes of a pass of an evaluation. ``method``: as for `cost`.
    """
    counted = cost(divide_batch(run, members), architecture, ranks, method)
    evaluation_bytes = None
    full = count_bytes(architecture.parameters, architecture.lengths)
    if evaluating is not None:
        evaluation_bytes = evaluating * (members - 1) * full
    gradient = _count_largest(architecture, counted.largest.part.lengths)
    memory = counted.largest.memory
    # Where it is not known, members may get the full network, and pass examples.
    loads = evaluating != 0
    member = _keep_buckets(memory, loads * (full + passed), gradient)
    return GroupCost(
        members=members,
        round_bytes=(members - 1) * _count_sent_inside(run, architecture, counted, local_steps),
        evaluation_bytes=evaluation_bytes,
        leader=_keep_buckets(memory, loads * full + passed, gradient),
        member=replace(member, owned=0, copies=memory.gradients, buffers=0),
    )


def _count_sent_inside(
    run: Run, architecture: Architecture, counted: Cost, local_steps: int
) -> Number:
    """Return the bytes of a round inside groups, for each member beside the leader."""
    subnets = sum(len(part.part.ranks) * part.memory.network for part in counted.parts)
    slots = len(counted.spec.optimizer_slots(run))
    copies = count_shared_copies(counted.spec, slots, local_steps)
    # Each of N members sends 2 (N-1) / N of all gradients in a step.
    sent = subnets * (copies + 2 * local_steps)
    for part in counted.parts:
        sums = count_normalised_together(architecture, part.part.lengths, run.train.sync_batch_norm)
        sent += 2 * local_steps * len(part.part.ranks) * sums.nbytes
    return counted.held.taking_part * sent


@dataclass(frozen=True)
class NormalisedTogether:
    """The sums of a step for the batch normalisations of a group's whole batch."""

    layers: Number = 0
    """The number of layers, each as often as a rank has it."""
    nbytes: Number = 0
    """Bytes of sums, squares and a count in the forward pass, and of two sums in the backward
    pass."""

    ALL_REDUCES: ClassVar[int] = 3
    """The all-reduces of a layer in a step, each of which waits for the one before."""


def count_normalised_together(
    architecture: Architecture, lengths: Mapping[str, Number], everywhere: bool
) -> NormalisedTogether:
    """Return what members add up in a step of a subnet of some ``lengths``. ``everywhere``: as
    train.sync_batch_norm."""
    if not architecture.batch_norms:
        return NormalisedTogether()
    from istmpi.network.norms import select_synchronised

    widths = {name: int(lengths[name]) for name in architecture.lengths}
    layers = architecture.batch_norm_layers(architecture.without_values(None, widths))
    number: Number = 0
    values: Number = 0
    for name, norm in select_synchronised(layers, everywhere).items():
        odds = _find_odds(architecture, name, lengths)
        number += odds
        values += odds * (4 * norm.num_features + 1)
    return NormalisedTogether(layers=number, nbytes=values * architecture.dtype.itemsize)


def _find_odds(architecture: Architecture, name: str, lengths: Mapping[str, Number]) -> Number:
    """Return the probability that a rank has a module, which may be in a block."""
    odds: Number = 1
    for group, blocks in architecture.blocks.items():
        for number, block in enumerate(blocks):
            if block.has(name):
                odds *= lengths.get(f"{group}[{number}]", 1)
    return odds


def _count_largest(architecture: Architecture, lengths: Mapping[str, Number]) -> Number:
    """Return the bytes of the largest parameter of a subnet."""
    return max(
        parameter.size(lengths) * parameter.itemsize
        for parameter in architecture.parameters.values()
    )


def _keep_buckets(memory: Memory, evaluated: Amount, gradient: Number) -> Memory:
    """Return the memory of a rank that averages gradients in buckets.

    ``evaluated``: bytes that an evaluation takes. ``gradient``: those of the largest gradient.
    """
    return replace(
        memory,
        # Buckets keep the gradients' memory from step to step, and a gradient is whole before it is
        # copied there.
        gradients=gradient,
        copies=memory.copies + memory.gradients,
        evaluation=max(memory.evaluation, evaluated),
        process=PROCESS + COMPILER,
    )
