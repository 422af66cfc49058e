"""Counts a run's bytes, FLOPs and memory. Bytes sent are expectations over deals; so are sizes if
blocks are dealt."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from istmpi.config import Run
from istmpi.cost.collectives import COLLECTIVES, HOP, PULL, Load, beside_steps
from istmpi.cost.holdings import Holdings, Number, Part
from istmpi.cost.rivals import counted
from istmpi.cost.whole_graph import whole_graph_bytes
from istmpi.methods import MethodSpec, limits, spec_of
from istmpi.models.architecture import Architecture
from istmpi.optim.optimizers import OptimizerSpec, optimizer_spec

NORMALISATION_FLOPS = 20
"""FLOPs for each unit and example: 8 forward, about 12 backward."""
FORWARD_NORMALISATION_FLOPS = 8
KEPT_OUTPUTS = 2
"""The tensors kept for the backward pass of a product: its output and the activation."""
PROCESS = 310_000_000
"""Bytes of Python, torch 2.13 for the CPU and MPICH 5.0, measured."""


@dataclass(frozen=True)
class Flops:
    """The FLOPs of one local step of one rank; multiply-add = 2."""

    products: Number
    """Matrix products, forward and for the needed gradients, as PyTorch counts them."""
    first_input_gradient: Number
    """The gradient of the network's input, which only the paper counts."""
    normalisation: Number
    optimizer: Number
    product_count: int
    lookups: Number = 0
    """Additions of embedding rows in bags, and of their gradients. PyTorch does not count them."""


@dataclass(frozen=True)
class Memory:
    """Bytes in one rank's memory, without the examples."""

    owned: Number
    """Rows of the rank that owns most, with their optimizer state."""
    network: Number
    gradients: Number
    optimizer: Number
    buffers: Number
    """Bytes that a transfer packs and receives."""
    activations: Number
    copies: Number
    """Copies of parameters in addition to the trained network."""
    evaluation: Number = 0
    """Values in the evaluation of a whole graph, when memory has no gradients and activations."""
    process: Number = PROCESS

    @property
    def total(self) -> Number:
        """The peak of bytes. Training, an evaluation and a transfer follow each other, so only the
        largest counts."""
        at_a_time = max(self.gradients + self.activations, self.evaluation, self.buffers)
        return self.process + self.owned + self.network + self.optimizer + at_a_time + self.copies


@dataclass(frozen=True)
class PartCost:
    part: Part
    elements: Number
    flops: Flops
    memory: Memory
    touched: Number
    """Bytes that a step reads from memory or writes to it outside the matrix products."""


@dataclass(frozen=True)
class Cost:
    method: str
    spec: MethodSpec
    held: Holdings
    parts: list[PartCost]
    local_steps: int
    examples_per_step: Number
    sends: int
    """The number of times in a round that all of ``loads`` are sent."""
    loads: list[Load]
    received_elements: Number
    """The elements that all ranks receive in a round. As in the paper, a rank's own elements count,
    too."""
    tensors: int
    """Tensors sent for each parameter: its weights and optimizer state; 1 if ``loads`` include the
    state already."""
    start_bytes: Number
    """Bytes of the first round minus bytes of a later round."""
    since: int
    """The first round in which ``loads`` are sent."""
    side: int = 0
    """The side of downscaled images; 0 for full-size images."""

    @property
    def ranks(self) -> int:
        return self.held.ranks

    @property
    def groups(self) -> tuple[str, ...]:
        return self.held.groups

    @property
    def largest(self) -> PartCost:
        return max(self.parts, key=lambda part: part.memory.total)

    @property
    def round_bytes(self) -> Number:
        """The expected bytes that all ranks together send in a round."""
        return self.sends * self.tensors * sum(load.sent for load in self.loads)

    def sent_bytes(self, first: int, rounds: int) -> Number:
        """The bytes of the method's start and of ``rounds`` rounds, the first of which has the
        number ``first``.

        Rounds before round ``since`` send nothing.
        """
        quiet = min(max(self.since - first, 0), rounds)
        return self.start_bytes + (rounds - quiet) * self.round_bytes

    @property
    def messages(self) -> int:
        return self.sends * sum(load.messages for load in self.loads)

    def flops(self, *kinds: str) -> Number:
        each = sum(
            len(part.part.ranks) * getattr(part.flops, kind)
            for part in self.parts
            for kind in kinds
        )
        return self.held.taking_part * each


def cost(
    run: Run,
    architecture: Architecture,
    ranks: int,
    method: str | None = None,
    shared_batch: bool = False,
    examples: int | None = None,
) -> Cost:
    """The cost of a run on ``ranks`` ranks. ``method``, also one of `RIVALS`, replaces the run's
    method.

    ``shared_batch``: True if the ranks of a method that sends in each step divide train.batch, as
    in the paper. ``examples``: the number of training examples, for methods whose rounds are passes
    over the data. Raises ConfigError if ranks or settings do not fit.
    """
    name = method or run.method.name
    spec = counted(name)
    run = replace(run, method=replace(run.method, name=name))
    limits.require_room(spec, run, architecture, ranks)
    groups = spec.groups(run, architecture)
    members = spec.members(run, ranks)
    dealing = (
        architecture.parameters,
        architecture.lengths,
        groups,
        ranks,
        spec.shares(run),
        members,
    )
    stays = spec.stays_with_holders(run, architecture, ranks)
    by_ring = spec.shares_by_ring(run, architecture, ranks)
    resting = run.method.redeal if stays else None, run.method.share_every if by_ring else 0
    held = Holdings(*dealing, *resting)
    made = optimizer_spec(run.optimizer)
    batch = Fraction(run.train.batch, ranks if shared_batch and spec.sends_every_step else 1)
    stored = len(spec.slots(run))
    sends = [COLLECTIVES[name](run) for name in spec.sends]
    early = spec.leaves_early(run, architecture, ranks)
    tensors = moved = spec.moved(run)
    wired, wire = held, spec.wire(run)
    if wire != "float32":
        tensors, wired = 1, Holdings(*dealing, *resting, wire, moved - 1)
    loads = []
    for collective in sends:
        if load := collective.load(held):
            if wire != "float32":  # values are handled, averaged and buffered as before
                as_before = {"handled": load.handled * moved, "averaged": load.averaged * moved}
                load = replace(collective.load(wired), **as_before)
            loads.append(load)
    if early:
        loads = beside_steps(loads, run.method.local_steps, early)
    owned = held.owned_bytes * (spec.owned_tensors + stored)
    buffers = max(load.buffers for load in loads)
    others = (ranks - 1) * spec.learns_from_others
    first = 0
    if stays or by_ring:  # the first round pulls everything from owners
        hopping = HOP.load(wired)
        later = PULL.load(wired).sent + (hopping.sent if hopping else 0)
        first = moved * PULL.load(Holdings(*dealing)).sent - tensors * later
    # Copies of undealt parameters: for a network that changes in every round, or a mean that is not
    # taken in each.
    staying = by_ring and (
        run.method.share_every > 1 or any(name in architecture.blocks for name in groups)
    )
    parts = []
    for part in held.parts:
        # Its part at the start of the round; parts that leave early, and parts that arrive
        # meanwhile.
        copies = held.network_bytes * spec.copies(run, ranks, stored) + moved * held.bytes(part) * (
            stays + 2 * bool(early)
        )
        copies += (
            len(spec.own_slots(run)) * held.network_bytes
        )  # the slots of a round's start, for a dropped round
        if (
            spec.sends_changes(run, ranks) and not spec.replicated
        ):  # replicated methods have the outer step's copy
            copies += held.bytes(part)
        copies += moved * staying * held.shared_bytes
        copies += (
            (moved + 1) * spec.sends_largest(run) * by_ring * held.shared_bytes
        )  # start, errors, own slots
        sparse = made.name == "sgd" and not run.optimizer.clip and not spec.sends_every_step
        inside = batch * Fraction(architecture.nodes[0])
        parts.append(
            _part_cost(
                part, held, architecture, inside, made, owned, buffers, copies, others, sparse
            )
        )
    return Cost(
        spec.name,
        spec,
        held,
        parts,
        local_steps=run.method.local_steps
        if examples is None
        else spec.steps(run, ranks, examples),
        examples_per_step=batch * members,
        sends=spec.sends_in_a_round(run),
        loads=loads,
        received_elements=spec.sends_in_a_round(run) * spec.received(run, held),
        tensors=tensors,
        start_bytes=(1 + stored)
        * (COLLECTIVES["pull"](run).load(held).sent if spec.replicated else 0)
        + first,
        since=spec.sends_since(run),
    )


def phase_costs(
    run: Run,
    architecture: Architecture,
    ranks: int,
    examples: int | None = None,
    smaller: Mapping[int, Architecture] | None = None,
) -> list[tuple[Cost, int]]:
    """Return (cost, number of rounds) for each part of a run with one method and image size.

    ``smaller``: the networks for downscaled images, by the images' side; for other sides,
    ``architecture`` counts. ``examples`` and errors are as for `cost`.
    """
    for name, _ in run.phases():
        where = "method.name =" if name == run.method.name else "method.finish ="
        limits.require_wire(spec_of(name, where), run)
    costs = []
    for name, side, rounds in run.stretches():
        of_side = cost(run, (smaller or {}).get(side, architecture), ranks, name, examples=examples)
        costs.append((replace(of_side, side=side), rounds))
    return costs


def _part_cost(
    part: Part,
    held: Holdings,
    architecture: Architecture,
    batch: Number,
    made: OptimizerSpec,
    owned: Number,
    buffers: Number,
    copies: Number,
    others: int,
    sparse: bool,
) -> PartCost:
    """Return the cost of one rank of ``part``.

    ``others``: the number of other networks through which a batch passes forward. ``sparse``: a
    step changes only the embedding rows that it reads.
    """
    elements = sum(parameter.size(part.lengths) for parameter in architecture.parameters.values())
    itemsize = max(parameter.itemsize for parameter in architecture.parameters.values())
    slots = len(made.slots)
    products = input_gradient = outputs = count = added_up = untouched = ungraded = 0
    for operator in architecture.operators:
        outputs += operator.kept(part.lengths, batch)
        added_up += operator.added_up(part.lengths, batch)
        if operator.lookups and operator.parameter and sparse:
            rows, *columns = architecture.parameters[operator.parameter].pattern.shape(part.lengths)
            untouched += max(rows - batch * operator.lookups, 0) * prod(columns)
        if (
            operator.kind == "LabelBlocks" and sparse and not slots
        ):  # its step is taken block by block
            ungraded += architecture.parameters[operator.parameter].size(part.lengths)
        forward, backward = operator.flops(part.lengths, batch)
        if forward:  # otherwise it looks up
            products += (1 + others) * forward + backward
            input_gradient += forward * operator.of_input
            count += (1 + operator.gradients + others) * operator.calls
    normalised = sum(prod(axes.shape(part.lengths)) for axes in architecture.normalised)
    weights = held.bytes(part)
    activations = KEPT_OUTPUTS * outputs * itemsize
    return PartCost(
        part,
        elements,
        Flops(
            products,
            input_gradient,
            (NORMALISATION_FLOPS + FORWARD_NORMALISATION_FLOPS * others) * normalised * batch,
            made.flops * (elements - untouched),
            count,
            2 * (2 + others) * added_up,
        ),
        Memory(
            owned,
            weights,
            weights - (untouched + ungraded) * itemsize,
            slots * weights,
            buffers,
            activations,
            copies,
            whole_graph_bytes(architecture, held.ranks),
        ),
        # Read and written: a weight and its optimizer state; read: its gradient. Activations: there
        # and back.
        touched=(3 + 2 * slots + others) * (weights - untouched * itemsize)
        + (4 + others) * activations
        + (2 + others) * added_up * itemsize,
    )
