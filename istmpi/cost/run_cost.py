"""Predicts the cost of a run: bytes, FLOPs and memory. Bytes sent are expectations over deals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from istmpi.config import Run
from istmpi.config.legs import count_batches
from istmpi.config.methods import MethodSpec, find_method_spec
from istmpi.cost.counts import Kept, PartCost, Step, count_part
from istmpi.cost.deal import ExpectedDeal, expect_deal, expect_route
from istmpi.cost.holdings import Holdings, Part
from istmpi.cost.loads import Load, count_flush_bytes, count_start_bytes, round_loads
from istmpi.cost.rivals import find_method
from istmpi.cost.whole_graph import whole_graph_bytes
from istmpi.engine.axes import count_bytes
from istmpi.engine.lengths import Number
from istmpi.engine.route import Route
from istmpi.methods import limits
from istmpi.network.architecture import Architecture
from istmpi.optim.optimizers import choose_optimizer


@dataclass(frozen=True)
class Cost:
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
    start_bytes: Number
    """Bytes of the first round minus bytes of a later round."""
    flush_bytes: Number
    """Bytes that bring the newest values to their owners before an evaluation."""
    since: int
    """The first round in which ``loads`` are sent."""
    side: int = 0
    """The side of downscaled images; 0 for full-size images."""

    @property
    def method(self) -> str:
        return self.spec.name

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
        return self.sends * sum(load.sent for load in self.loads)

    def sent_bytes(self, first: int, rounds: int) -> Number:
        """The bytes of the method's start and of ``rounds`` rounds, the first of which has the
        number ``first``.

        Rounds before round ``since`` send nothing.
        """
        quiet = min(max(self.since - first, 0), rounds)
        return self.start_bytes + (rounds - quiet) * self.round_bytes

    @property
    def messages(self) -> int:
        """The messages of the busiest rank in a round, one after the other."""
        return self.sends * sum(load.messages for load in self.loads)

    def flops(self, *kinds: str) -> Number:
        """Return the expected FLOPs of all ranks in a local step. ``kinds``: fields of `Flops`."""
        of_all_parts = sum(
            len(part.part.ranks) * getattr(part.flops, kind)
            for part in self.parts
            for kind in kinds
        )
        return self.held.taking_part * of_all_parts


@dataclass(frozen=True)
class Setup:
    """A run of one method on some ranks, and the deal and route that its rounds have in common."""

    run: Run
    spec: MethodSpec
    architecture: Architecture
    deal: ExpectedDeal
    route: Route
    held: Holdings
    """The weights of the network, as they are dealt."""
    batch: Number
    """The examples of a rank in a local step."""


def cost(
    run: Run,
    architecture: Architecture,
    ranks: int,
    method: str | None = None,
    shared_batch: bool = False,
    examples: int | None = None,
    later: bool = False,
) -> Cost:
    """Return the cost of a run. Raises ConfigError if ranks or settings do not fit.

    ``method``: a method, also one of `RIVALS`, in place of the run's. ``shared_batch``: True if
    ranks that send in each step divide train.batch, as in the paper. ``examples``: the number of
    training examples, for methods whose rounds are passes over the data. ``later``: True if other
    rounds come before, so that weights are no longer the initial ones.
    """
    setup = _set_up(run, architecture, ranks, method or run.method.name, shared_batch)
    if later:
        setup = replace(setup, route=replace(setup.route, drawn=frozenset()))
    loads = round_loads(setup.route, architecture.parameters, setup.deal)
    return Cost(
        spec=setup.spec,
        held=setup.held,
        parts=_count_parts(setup, loads),
        local_steps=_local_steps(setup, examples),
        examples_per_step=_count_examples(setup),
        sends=setup.route.means,
        loads=loads,
        received_elements=_count_received(setup),
        start_bytes=count_start_bytes(setup.route, architecture.parameters, setup.deal),
        flush_bytes=count_flush_bytes(setup.route, architecture.parameters, setup.deal),
        since=setup.route.since,
    )


def _set_up(
    run: Run, architecture: Architecture, ranks: int, method: str, shared_batch: bool
) -> Setup:
    spec = find_method(method)
    run = replace(run, method=replace(run.method, name=method))
    limits.require_room(spec, run, architecture, ranks)
    deal = expect_deal(spec, run, architecture, ranks)
    divided = ranks if shared_batch and spec.sends_every_step else 1
    return Setup(
        run=run,
        spec=spec,
        architecture=architecture,
        deal=deal,
        route=expect_route(spec, run, architecture, deal),
        held=deal.holdings(architecture.parameters),
        batch=Fraction(run.train.batch, divided),
    )


def _count_examples(setup: Setup) -> Number:
    """Return the examples that all ranks together train on in a local step."""
    if setup.spec.sums_outputs:
        # All ranks have the same batch.
        return setup.batch
    return setup.batch * setup.held.members


def _count_received(setup: Setup) -> Number:
    outputs = setup.route.outputs
    if outputs is None:
        return setup.route.means * setup.spec.received(setup.run, setup.held)
    elements = count_batches(setup.run.method) * outputs.rows * outputs.values
    return 2 * (setup.held.ranks - 1) * elements


def _local_steps(setup: Setup, examples: int | None) -> int:
    if examples is None:
        return setup.run.method.local_steps
    return setup.spec.steps(setup.run, setup.held.ranks, examples)


def _count_parts(setup: Setup, loads: Sequence[Load]) -> list[PartCost]:
    spec = setup.spec
    held = setup.held
    optimizer = choose_optimizer(setup.run.optimizer)
    clips = bool(setup.run.optimizer.clip)
    step = Step(
        examples=setup.batch * Fraction(setup.architecture.nodes[0]),
        optimizer=optimizer,
        others=_count_other_passes(setup),
        # Only such a step leaves rows of embeddings alone that its batch does not read.
        sparse=optimizer.name == "sgd" and not clips and not spec.changes_gradients,
    )
    tensors = spec.owned_tensors + len(setup.route.stored)
    owned = held.owned_bytes * tensors
    buffers = max(load.buffers for load in loads)
    if spec.sums_outputs and not setup.run.checkpoint.every:
        # Rows of dealt parameters come into memory at the end, when it has no gradients any more.
        # A checkpoint is written while the next round trains, so they would stay with it.
        owned = held.owned_undealt_bytes * tensors
        buffers += held.owned_bytes * tensors - owned
    kept = Kept(
        owned=owned,
        buffers=buffers,
        copies=0,
        evaluation=whole_graph_bytes(setup.architecture, held.ranks),
    )
    parts = []
    for part in held.parts:
        of_part = replace(kept, copies=_copied_bytes(setup, part))
        parts.append(count_part(part, setup.architecture, step, of_part))
    return parts


def _count_other_passes(setup: Setup) -> Number:
    """Return how many times a batch passes forward beside the pass of a local step itself."""
    others = setup.held.ranks - 1
    if setup.spec.sums_outputs:
        # A round of several steps begins with a pass of its batches.
        if others == 0 or setup.run.method.local_steps == 1:
            return 0
        return Fraction(1, setup.run.method.passes)
    return others * setup.spec.learns_from_others


def _copied_bytes(setup: Setup, part: Part) -> Number:
    """Return the bytes of the copies of parameters that a rank keeps in addition to its network."""
    spec = setup.spec
    route = setup.route
    held = setup.held
    tensors = 1 + len(route.slots)
    subnet = held.bytes(part)
    copies: Number = subnet * spec.copies(setup.run, held.ranks, len(route.stored))
    if route.outputs:
        # The outputs of this rank and the sums of all ranks, for all batches of a round.
        outputs = route.outputs.of_steps(range(count_batches(setup.run.method)))
        copies += 2 * count_bytes(outputs, {})
    # The slots of a round's start, in case the round is dropped.
    copies += held.network_bytes * len(spec.own_slots(setup.run))
    if route.stays:
        copies += tensors * subnet  # at the round's start
    if route.early:
        copies += 2 * tensors * subnet  # what leaves early, and what arrives meanwhile
    if spec.replicated:
        return copies  # the rest is among the copies of the method
    if route.sends_changes:
        copies += subnet
    if route.common:
        # A copy is kept if no mean is taken in some rounds, or if networks change with the blocks.
        if route.every > 1 or any(name in setup.architecture.blocks for name in route.groups):
            copies += tensors * held.shared_bytes
        if route.largest:
            copies += (1 + tensors) * held.shared_bytes  # start, errors, own slots
    return copies


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
        limits.require_wire(find_method_spec(name, where), run)
    costs: list[tuple[Cost, int]] = []
    for name, side, rounds in run.stretches():
        of_side = cost(
            run,
            (smaller or {}).get(side, architecture),
            ranks,
            name,
            examples=examples,
            later=bool(costs),
        )
        costs.append((replace(of_side, side=side), rounds))
    return costs
