"""Plans the evaluation of the full network without torch: the weights that every rank gathers, and
the bytes sent.

*Gathered* weights are whole on every rank. *Sharded* weights stay with their owners: each rank computes with its rows
of a leaf (a layer), and the outputs are gathered. A leaf is sharded if this sends fewer bytes, or
if gathered weights would not fit into the memory that training's gradients and activations leave
free. If any weight is sharded, all ranks pass the same examples; if that takes longer
(`FLOPS_A_BYTE`), and memory allows, all weights are gathered. If each rank has its own examples, a
leaf is sharded only for lack of memory, and its owners in turn send their rows to all ranks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from istmpi.config import Run
from istmpi.cost.calibration import calibration_examples
from istmpi.cost.run_cost import phase_costs
from istmpi.cost.whole_graph import unitwise, whole_graph_bytes
from istmpi.engine.lengths import Number
from istmpi.multilabel import TOP, Ranking
from istmpi.network.architecture import Architecture

TOTALS = 24
"""Bytes of loss, score and number of examples, which ranks add up."""
FLOPS_A_BYTE = 100
"""The FLOPs of a rank while it sends a byte: 10 GFLOP/s, 100 MB/s."""
COUNT = 8
"""Bytes of a count: the number of values behind a normalisation's moments."""
RANKED = 8 * Ranking.size
PART = 8 * (2 + 2 * TOP)
"""Bytes that a rank sends about its part of an example's labels."""


@dataclass(frozen=True)
class Weights:
    names: tuple[str, ...]
    nbytes: int
    sharded: int
    """Bytes that are sent if these weights are sharded; an upper bound for embeddings."""


@dataclass(frozen=True)
class EvaluationPlan:
    """The parameters that are sharded in an evaluation, the bytes of all others, and the bytes that
    ranks send."""

    sharded: frozenset[str]
    gathered_bytes: int
    sent: int
    """Bytes that all ranks send; if ranks have their own examples, only the bytes of gathered
    weights."""
    by_units: bool = False
    """True for a graph if each layer's units are spread over the ranks."""


def evaluation_memory(run: Run, architecture: Architecture, ranks: int) -> Number:
    """Return the bytes of gradients and activations, which are free on every rank during an
    evaluation.

    If each rank has its own graph, only gradients count, because activations depend on the graph.
    """
    memories = [
        part.memory for phase, _ in phase_costs(run, architecture, ranks) for part in phase.parts
    ]
    local_graph = run.data.placement == "local" and architecture.nodes[1] > 0
    return min(memory.gradients + (0 if local_graph else memory.activations) for memory in memories)


MOST_LOGITS = 2**26
"""The largest number of logits of a pass over several windows or sparse rows."""


def windows_together(batch: int, logits: int) -> int:
    return max(min(batch, MOST_LOGITS // logits), 1)


def pass_bytes(run: Run, architecture: Architecture, ranks: int) -> Number:
    """Return the least bytes of a pass: examples or graph, and the widest outputs before and after
    a normalisation."""
    widest = max(
        operator.outputs(architecture.lengths) // operator.calls
        for operator in architecture.operators
    )
    if architecture.nodes[1]:
        return whole_graph_bytes(architecture, ranks)
    batch, code = run.evaluate.batch, architecture.code
    if code.tokens or code.sparse:
        batch = windows_together(batch, code.numbers)
    sampled = calibration_examples(run, architecture, ranks) if architecture.batch_norms else 0
    examples = max(batch, -(-sampled // ranks))
    in_a_row = sum(operator.lookups for operator in architecture.operators)
    return (
        examples
        * ((in_a_row or prod(architecture.example_shape)) + 2 * widest)
        * architecture.itemsize
    )


def evaluation_plan(
    architecture: Architecture,
    ranks: int,
    room: Number,
    passes: Sequence[int],
    local: bool = False,
    spread: bool = False,
) -> EvaluationPlan:
    """Plan an evaluation. ``room``: bytes for gathered weights. ``passes``: the number of examples
    in each pass.

    ``local``: ranks have their own examples. ``spread``: a sharded head sends only its highest
    outputs, and in the first pass (calibration) nothing.
    """
    parameters = architecture.parameters.items()
    sizes = {
        name: parameter.size(architecture.lengths) * parameter.itemsize
        for name, parameter in parameters
    }
    if unitwise(architecture) and architecture.nodes[1] and ranks > 1 and not local:
        return _graph_plan(architecture, ranks, room, sizes)
    choices = list(_choices(architecture, ranks, passes, sizes, spread)) if ranks > 1 else []
    kept = [
        weights
        for weights in choices
        if weights.sharded < (ranks - 1) * weights.nbytes and not local
    ]
    everything = sum(sizes.values())
    # decision 36: a leaf is gathered if its products would take longer than its bytes.
    if everything <= room and _costs_more_than_it_saves(architecture, ranks, passes, kept):
        kept = []
    gathered = everything - sum(weights.nbytes for weights in kept)

    def price(weights: Weights) -> tuple[Number, str]:
        return -weights.nbytes if local else Fraction(
            weights.sharded, weights.nbytes
        ), weights.names[0]

    for weights in sorted((weights for weights in choices if weights not in kept), key=price):
        if gathered <= room:
            break
        kept.append(weights)
        gathered -= weights.nbytes
    sharded = {name for weights in kept for name in weights.names}
    whole = sum(nbytes for name, nbytes in sizes.items() if name not in sharded)
    sent = (ranks - 1) * whole
    if sharded and not local:
        sent += sum(weights.sharded for weights in choices if sharded.issuperset(weights.names))
    elif not local:
        sent += ranks * (ranks - 1) * (RANKED if spread else TOTALS)
        if not architecture.nodes[
            1
        ]:  # each rank calibrates on some examples, and sums are added up
            norms = architecture.batch_norms.values()
            sent += (
                ranks
                * (ranks - 1)
                * sum(COUNT + 2 * norm.units * architecture.itemsize for norm in norms)
            )
    return EvaluationPlan(frozenset(sharded), whole, sent)


def _costs_more_than_it_saves(
    architecture: Architecture, ranks: int, passes: Sequence[int], kept: Sequence[Weights]
) -> bool:
    sharded = {name for weights in kept for name in weights.names}
    on_all = [operator for operator in architecture.operators if operator.parameter not in sharded]
    flops = sum(
        operator.flops(architecture.lengths, examples)[0]
        for operator in on_all
        for examples in passes
    )
    saved = sum((ranks - 1) * weights.nbytes - weights.sharded for weights in kept)
    return flops * (ranks - 1) > FLOPS_A_BYTE * saved


def _graph_plan(
    architecture: Architecture, ranks: int, room: Number, sizes: dict[str, int]
) -> EvaluationPlan:
    nodes, everything = architecture.nodes[1], sum(sizes.values())
    if everything + whole_graph_bytes(architecture, 1) <= room:
        return EvaluationPlan(frozenset(), everything, (ranks - 1) * (everything + ranks * TOTALS))
    names_of_leaves = [name for names in architecture.leaves.values() for name in names]
    rows_of = {name: architecture.parameters[name].pattern.axes[0] for name in names_of_leaves}
    last = {name for name, axis in rows_of.items() if not axis.names}  # they make the outputs
    sharded = frozenset(names_of_leaves) - last
    whole = sum(size for name, size in sizes.items() if name not in sharded)
    sent = (ranks - 1) * whole
    for path, names in architecture.leaves.items():
        rows, columns = architecture.parameters[names[0]].pattern.shape(architecture.lengths)
        if path in architecture.sums:
            numbers = nodes * rows * ranks if names[0] in last else nodes * columns
            sent += (ranks - 1) * numbers * architecture.itemsize
    sums = 2 * len(architecture.normalised) * nodes
    sent += ranks * (ranks - 1) * sums * architecture.itemsize
    return EvaluationPlan(sharded, whole, sent, by_units=True)


def _choices(
    architecture: Architecture,
    ranks: int,
    passes: Sequence[int],
    sizes: dict[str, int],
    spread: bool,
) -> Iterator[Weights]:
    for paths in _together(architecture):
        names = tuple(dict.fromkeys(name for path in paths for name in architecture.leaves[path]))
        rows = min(
            architecture.parameters[name].pattern.axes[0].length(architecture.lengths)
            for name in names
        )
        if rows >= ranks:
            if spread and paths == [architecture.head]:
                sharded = ranks * (ranks - 1) * sum(passes[1:]) * PART
            else:
                sharded = sum(
                    _pass_bytes(architecture, path, ranks, examples)
                    for path in paths
                    for examples in passes
                )
            yield Weights(names, sum(sizes[name] for name in names), sharded)


def _together(architecture: Architecture) -> list[list[str]]:
    groups: list[tuple[set[str], list[str]]] = []
    for path, names in architecture.leaves.items():
        touching = [group for group in groups if not group[0].isdisjoint(names)]
        groups = [group for group in groups if group not in touching]
        merged = set(names).union(*(group[0] for group in touching))
        groups.append((merged, [*(path for group in touching for path in group[1]), path]))
    return [paths for _, paths in groups]


def _pass_bytes(architecture: Architecture, path: str, ranks: int, examples: int) -> int:
    total = 0
    for operator in architecture.operators:
        if operator.module != path:
            continue
        parameter = architecture.parameters[operator.parameter]
        outputs = int(operator.outputs(architecture.lengths, examples))
        if operator.kind == "Embedding":  # only rows that are looked up are sent, each once
            outputs = min(outputs, operator.calls * parameter.size(architecture.lengths))
        elif operator.kind == "EmbeddingBag":  # every rank has a contribution to each output
            outputs *= ranks
        total += (ranks - 1) * outputs * architecture.itemsize
    return total
