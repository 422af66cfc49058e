"""Plans the evaluation of the full network without torch: the weights that every rank gathers, and
the bytes sent.

*Gathered* weights are whole on every rank. *Sharded* weights stay with their owners: each rank
computes with its rows of a leaf (a layer), and the outputs are gathered. A leaf is sharded if this
sends fewer bytes, or if gathered weights would not fit into the memory that training's gradients
and activations leave free. If any weight is sharded, all ranks pass the same examples; if that
takes longer (`FLOPS_A_BYTE`), and memory allows, all weights are gathered. If each rank has its own
examples, a leaf is sharded only for lack of memory, and its owners in turn send their rows to all
ranks.

Whole weights are gathered on all ranks, which divide the examples, or *on one*: rank 0 passes all
examples, and the others wait. This sends a P-th of the bytes, and takes longer than a division of
the examples. So it is chosen if its products take little time (`FLOPS_OF_ONE`).

*Summed* units stay with their owners, too: if they are those of the last hidden layer, a rank needs
no other rank's units, and ranks add up the outputs. All ranks pass all examples, once
(`istmpi.cost.summed_units`). Ranks do so if the busiest line then has fewer bytes: weights on their
way to rank 0 fill its line, and sums fill the lines of all ranks.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from istmpi.config import Run
from istmpi.cost.counts import Amount
from istmpi.cost.evaluation_plan import EvaluationPlan
from istmpi.cost.run_cost import phase_costs
from istmpi.cost.summed_units import prefer_summed_units
from istmpi.cost.whole_graph import unitwise, whole_graph_bytes
from istmpi.engine.layout import Owners
from istmpi.engine.lengths import Number
from istmpi.multilabel import TOP, Ranking
from istmpi.network.architecture import Architecture

FLOPS_A_BYTE = 100
"""The FLOPs of a rank while it sends a byte: 10 GFLOP/s, 100 MB/s."""
FLOPS_OF_ONE = 2**32
"""FLOPs for which other ranks may wait for rank 0: half a second, at 10 GFLOP/s."""
ALWAYS_FREE = 2**26
"""Bytes for gathered weights that any rank has: a process needs several times as many anyway."""
COUNT = 8
"""Bytes of a count: the number of values behind a normalisation's moments."""
RANKED = 8 * Ranking.size
PART = 8 * (2 + 2 * TOP)
"""Bytes that a rank sends about its part of an example's labels."""


@dataclass(frozen=True)
class Weights:
    """Weights that are all sharded or all gathered, and the bytes that either choice takes."""

    names: tuple[str, ...]
    nbytes: int
    sharded: int
    """Bytes that are sent if these weights are sharded; an upper bound for embeddings."""
    gathered: int
    """Bytes that each rank lacks and gets if these weights are gathered, its own rows included."""


def evaluation_memory(run: Run, architecture: Architecture, ranks: int, local: bool) -> Amount:
    """Return the bytes of gradients and activations, which are free on every rank during an
    evaluation, or `ALWAYS_FREE` if they are fewer, or if all weights need no more.

    If each rank has its own graph (``local``), only gradients count, because activations depend on
    the graph.
    """
    # To count what a round holds is most of the work of planning an evaluation.
    if not architecture.nodes[1] and sum(_list_sizes(architecture).values()) <= ALWAYS_FREE:
        return ALWAYS_FREE
    local_graph = local and architecture.nodes[1] > 0
    sizes: list[Amount] = []
    for phase, _ in phase_costs(run, architecture, ranks):
        for part in phase.parts:
            activations = 0 if local_graph else part.memory.activations
            sizes.append(part.memory.gradients + activations)
    return max(min(sizes), ALWAYS_FREE)


def evaluation_plan(
    architecture: Architecture,
    ranks: int,
    room: Amount,
    passes: Sequence[int],
    local: bool = False,
    spread: bool = False,
    on_one: bool = False,
    present: Collection[str] = (),
    numbers: int = 3,
    at_once: int = 0,
) -> EvaluationPlan:
    """Plan an evaluation.

    ``room``: bytes for gathered weights. ``passes``: the examples of each pass. ``local``: ranks
    have their own examples. ``spread``: a sharded head sends only its highest outputs, and in the
    first pass (calibration) nothing. ``on_one``: rank 0 may score alone. ``present``: weights that
    every rank has anyway. ``numbers``: the sums of a score, over which ranks add up. ``at_once``:
    the examples of the sample and those scored, if they may be passed together; 0 if not.
    """
    sizes = _list_sizes(architecture)
    if unitwise(architecture) and architecture.nodes[1] and ranks > 1 and not local:
        return _graph_plan(architecture, ranks, room, sizes, 8 * numbers)
    whole = sum(sizes.values())
    totals = 8 * numbers
    if spread:
        totals = RANKED
    missing_bytes = {name: nbytes for name, nbytes in sizes.items() if name not in present}
    fits = ranks > 1 and not local and whole <= room
    if on_one and fits and _pays_on_one(architecture, passes, missing_bytes):
        alone = _plan_on_one(architecture, ranks, missing_bytes, whole, totals)
        return prefer_summed_units(alone, architecture, ranks, sizes, missing_bytes, at_once)
    return _plan_on_all(
        architecture, ranks, room, passes, sizes, missing_bytes, totals, local=local, spread=spread
    )


def _plan_on_all(
    architecture: Architecture,
    ranks: int,
    room: Amount,
    passes: Sequence[int],
    sizes: dict[str, int],
    missing_bytes: dict[str, int],
    totals: int,
    local: bool,
    spread: bool,
) -> EvaluationPlan:
    """Plan an evaluation in which all ranks gather weights or compute outputs.

    ``sizes``: bytes of each parameter; ``missing_bytes``: of the weights that some ranks lack.
    ``totals``: bytes of a score's sums.
    """
    choices: list[Weights] = []
    if ranks > 1:
        choices += _choices(architecture, ranks, passes, sizes, spread, missing_bytes)
    excess = sum(sizes.values()) - room
    chosen = _choose_sharded(architecture, ranks, passes, choices, excess, local)
    sharded = frozenset(name for weights in chosen for name in weights.names)
    gathered = sum(nbytes for name, nbytes in sizes.items() if name not in sharded)
    gathered_missing = [size for name, size in missing_bytes.items() if name not in sharded]
    sent = (ranks - 1) * sum(gathered_missing)
    if sharded and not local:
        sent += sum(weights.sharded for weights in choices if sharded.issuperset(weights.names))
    elif not local:
        sent += _totals_bytes(architecture, ranks, totals)
    sums = None
    if not sharded and not local:
        sums = ranks * (ranks - 1) * totals
    return EvaluationPlan(sharded=sharded, gathered_bytes=gathered, sent=sent, sums=sums)


def _choose_sharded(
    architecture: Architecture,
    ranks: int,
    passes: Sequence[int],
    choices: Sequence[Weights],
    excess: Amount,
    local: bool,
) -> list[Weights]:
    """Return the weights to shard; all weights need ``excess`` bytes more than there are."""
    # Ranks with their own examples send each other no outputs: sharding only saves memory.
    chosen = [] if local else _choose_by_bytes(choices, ranks)
    # decision 36: a leaf is gathered if its products would take longer than its bytes.
    if excess <= 0 and _costs_more_than_it_saves(architecture, ranks, passes, chosen):
        chosen = []
    return [*chosen, *_choose_by_memory(choices, chosen, excess, local)]


def _list_sizes(architecture: Architecture) -> dict[str, int]:
    """Return the bytes of each parameter."""
    return {
        name: parameter.size(architecture.lengths) * parameter.itemsize
        for name, parameter in architecture.parameters.items()
    }


def _pays_on_one(
    architecture: Architecture, passes: Sequence[int], missing_bytes: dict[str, int]
) -> bool:
    """Return True if a single rank saves messages and takes little time for the products of all
    passes. ``missing_bytes``: of the weights that some ranks lack."""
    # Moments of a batch over all ranks take three messages for each normalisation.
    if not missing_bytes and not architecture.batch_norms:
        return False
    return _count_products(architecture, passes) <= FLOPS_OF_ONE


def _count_products(
    architecture: Architecture, passes: Sequence[int], sharded: Collection[str] = ()
) -> Number:
    """Return the FLOPs of the products of all passes, without those of ``sharded`` parameters."""
    flops: Number = 0
    for operator in architecture.operators:
        if operator.parameter not in sharded:
            flops += sum(operator.flops(architecture.lengths, examples)[0] for examples in passes)
    return flops


def _plan_on_one(
    architecture: Architecture, ranks: int, missing_bytes: dict[str, int], whole: int, totals: int
) -> EvaluationPlan:
    """Plan an evaluation for which rank 0 alone gathers the weights that others have."""
    owners = Owners(dict(architecture.lengths), ranks)
    sums = (ranks - 1) * totals
    sent = sums
    for name, nbytes in missing_bytes.items():
        length, *_ = architecture.parameters[name].pattern.shape(architecture.lengths)
        sent += nbytes - nbytes // length * len(owners.rows(length, 0))
    return EvaluationPlan(
        sharded=frozenset(), gathered_bytes=whole, sent=sent, sums=sums, on_one=True
    )


def _choose_by_bytes(choices: Sequence[Weights], ranks: int) -> list[Weights]:
    """Return the weights that send fewer bytes if they are sharded."""
    return [weights for weights in choices if weights.sharded < (ranks - 1) * weights.gathered]


def _choose_by_memory(
    choices: Sequence[Weights], chosen: Sequence[Weights], excess: Amount, local: bool
) -> list[Weights]:
    """Return further weights to shard, until ``excess`` bytes of all weights are not gathered.

    The weights that send least for each byte of memory come first; with local examples, the
    largest.
    """

    # The name decides between equal weights, so that all ranks choose alike.
    def price(weights: Weights) -> tuple[Number, str]:
        if local:
            return -weights.nbytes, weights.names[0]
        return Fraction(weights.sharded, weights.nbytes), weights.names[0]

    further: list[Weights] = []
    excess -= sum(weights.nbytes for weights in chosen)
    for weights in sorted((weights for weights in choices if weights not in chosen), key=price):
        if excess <= 0:
            break
        further.append(weights)
        excess -= weights.nbytes
    return further


def _totals_bytes(architecture: Architecture, ranks: int, totals: int) -> int:
    """Return the bytes of the sums that all ranks send each other if each scores some examples."""
    numbers = totals
    if not architecture.nodes[1]:
        # Each rank calibrates on some examples, too.
        for norm in architecture.batch_norms.values():
            numbers += COUNT + 2 * norm.units * architecture.itemsize
    return ranks * (ranks - 1) * numbers


def _costs_more_than_it_saves(
    architecture: Architecture, ranks: int, passes: Sequence[int], kept: Sequence[Weights]
) -> bool:
    """Return True if sharding the weights in ``kept`` costs more time for repeated products than it
    saves for bytes."""
    sharded = {name for weights in kept for name in weights.names}
    # All ranks repeat the products for all examples.
    flops = _count_products(architecture, passes, sharded)
    saved = sum((ranks - 1) * weights.gathered - weights.sharded for weights in kept)
    return flops * (ranks - 1) > FLOPS_A_BYTE * saved


def _graph_plan(
    architecture: Architecture, ranks: int, room: Amount, sizes: dict[str, int], totals: int
) -> EvaluationPlan:
    nodes = architecture.nodes[1]
    everything = sum(sizes.values())
    if everything + whole_graph_bytes(architecture, 1) <= room:
        return EvaluationPlan(
            sharded=frozenset(),
            gathered_bytes=everything,
            sent=(ranks - 1) * (everything + ranks * totals),
        )
    in_leaves = frozenset().union(*architecture.leaves.values())
    # Rows without a name are the outputs of the network, which every rank computes.
    last = {name for name in in_leaves if not architecture.parameters[name].pattern.axes[0].names}
    sharded = in_leaves - last
    gathered = sum(size for name, size in sizes.items() if name not in sharded)
    sent = (ranks - 1) * gathered
    for path, names in architecture.leaves.items():
        if path not in architecture.sums:
            continue
        rows, columns = architecture.parameters[names[0]].pattern.shape(architecture.lengths)
        numbers = nodes * columns
        if names[0] in last:
            # Each rank adds up the part of its units.
            numbers = nodes * rows * ranks
        sent += (ranks - 1) * numbers * architecture.itemsize
    sums = 2 * len(architecture.normalised) * nodes
    sent += ranks * (ranks - 1) * sums * architecture.itemsize
    return EvaluationPlan(sharded=sharded, gathered_bytes=gathered, sent=sent, by_units=True)


def _choices(
    architecture: Architecture,
    ranks: int,
    passes: Sequence[int],
    sizes: dict[str, int],
    spread: bool,
    missing_bytes: dict[str, int],
) -> Iterator[Weights]:
    """Yield the weights of leaves that can be sharded: every rank owns a row of each."""
    for paths in _group_leaves(architecture):
        names = tuple(dict.fromkeys(name for path in paths for name in architecture.leaves[path]))
        rows = min(
            architecture.parameters[name].pattern.axes[0].length(architecture.lengths)
            for name in names
        )
        if rows < ranks:
            continue
        if spread and paths == [architecture.head]:
            sharded = ranks * (ranks - 1) * sum(passes[1:]) * PART
        else:
            sharded = 0
            for path in paths:
                for examples in passes:
                    sharded += _leaf_bytes(architecture, path, ranks, examples)
        yield Weights(
            names=names,
            nbytes=sum(sizes[name] for name in names),
            sharded=sharded,
            gathered=sum(missing_bytes.get(name, 0) for name in names),
        )


@dataclass
class _Leaves:
    """Leaves that share weights, and must all be sharded or all be gathered."""

    names: set[str]
    paths: list[str]


def _group_leaves(architecture: Architecture) -> list[list[str]]:
    """Return the paths of leaves in groups that have no weight in common."""
    groups: list[_Leaves] = []
    for path, names in architecture.leaves.items():
        merged = _Leaves(names=set(names), paths=[])
        others = []
        for group in groups:
            if group.names.isdisjoint(names):
                others.append(group)
            else:
                merged.names |= group.names
                merged.paths += group.paths
        merged.paths.append(path)
        groups = [*others, merged]
    return [group.paths for group in groups]


def _leaf_bytes(architecture: Architecture, path: str, ranks: int, examples: int) -> int:
    """Return the bytes that all ranks send for a sharded leaf in a pass of ``examples``."""
    total = 0
    for operator in architecture.operators:
        if operator.module != path:
            continue
        parameter = architecture.parameters[operator.parameter]
        outputs = int(operator.outputs(architecture.lengths, examples))
        if operator.kind == "Embedding":
            # Only rows that are looked up are sent, each once.
            outputs = min(outputs, operator.calls * parameter.size(architecture.lengths))
        elif operator.kind == "EmbeddingBag":
            # Every rank has a contribution to each output.
            outputs *= ranks
        total += (ranks - 1) * outputs * architecture.itemsize
    return total
