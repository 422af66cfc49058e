"""What a run costs in bytes, FLOPs and memory, from the named axes alone: no MPI, no torch, no training.

A parameter with k dealt axes is held |W|·P^(1-k) times over all ranks (arXiv 1910.02120, section 3.3). `pair_bytes` is
exact for two given layouts; `Cost` is exact in what each rank holds and computes, and in expectation over deals in what
it sends.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from istmpi.axes import Parameter
from istmpi.config import Run
from istmpi.errors import ConfigError, did_you_mean
from istmpi.layout import Layout, Owners
from istmpi.models.architecture import Architecture
from istmpi.partition import blocks, check


def pair_bytes(parameters: Mapping[str, Parameter], source: Layout, target: Layout) -> np.ndarray:
    """Bytes that every rank has for every other when all parameters move: ``[from, to]`` int64, exact.

    The diagonal is what stays on its rank and never reaches MPI.
    """
    total = np.zeros((source.ranks, target.ranks), dtype=np.int64)
    for parameter in parameters.values():
        elements = np.ones_like(total)
        for place, axis in enumerate(parameter.pattern.axes):
            length = axis.length(source.lengths)
            here, there = (
                np.stack([_marked(layout.positions(axis, place, rank), length) for rank in range(layout.ranks)])
                for layout in (source, target)
            )
            elements *= here @ there.T
        total += elements * parameter.itemsize
    return total


def _marked(positions: Sequence[int], length: int) -> np.ndarray:
    """1 at the given positions of an axis and 0 elsewhere: ``[length]`` int64."""
    marks = np.zeros(length, dtype=np.int64)
    marks[positions] = 1
    return marks


@dataclass(frozen=True)
class RankCost:
    """What one rank holds and computes."""

    lengths: dict[str, int]
    """Of the network that it trains."""
    trained_elements: int
    owned_bytes: int
    """Owned rows, optimizer state included where it is carried along."""
    trained_bytes: int
    """The network that it trains, its gradients and its optimizer's state."""
    flops: int
    """Of the matrix products of one local step: forward, weight gradient, input gradient where anyone needs it."""


@dataclass(frozen=True)
class Cost:
    """What one round of a run costs."""

    ranks: list[RankCost]
    groups: tuple[str, ...]
    round_bytes: float
    """Bytes that all ranks hand to MPI in a round: expected over deals, without what stays on its rank."""

    @property
    def largest(self) -> RankCost:
        """The rank that needs the most memory."""
        return max(self.ranks, key=lambda rank: rank.owned_bytes + rank.trained_bytes)


def cost(run: Run, architecture: Architecture, ranks: int, slots: int = 0) -> Cost:
    """The cost of a run on so many ranks; ``slots`` numbers per element are kept by its optimizer.

    Raises ConfigError for an unknown method or a deal that cannot be made.
    """
    if run.method.name not in METHODS:
        raise ConfigError(f"method.name = {run.method.name!r} is not known{did_you_mean(run.method.name, METHODS)}")
    kind = METHODS[run.method.name]
    groups = kind.groups(run, architecture)
    shares = run.method.shares
    lengths = architecture.lengths
    check(lengths, groups, ranks, shares)
    sizes = {name: blocks(lengths[name], ranks, shares) for name in groups}
    owners = Owners(lengths, ranks)
    stored = slots if kind.keeps_slots(run) else 0
    costs, one_way = [], 0.0
    for rank in range(ranks):
        narrow = {**lengths, **{name: size[rank] for name, size in sizes.items()}}
        elements = held = owned = flops = 0
        for parameter in architecture.parameters.values():
            shape = parameter.pattern.shape(lengths)
            mine = parameter.size(narrow)
            rows = len(owners.rows(shape[0], rank))
            elements += mine
            held += mine * parameter.itemsize
            owned += rows * prod(shape[1:]) * parameter.itemsize
            one_way += mine * (1 - rows / shape[0]) * parameter.itemsize
            flops += mine * parameter.multiplies * run.train.batch * (4 if parameter.of_input else 6)
        costs.append(RankCost(narrow, elements, owned * (1 + stored), held * (2 + slots), flops))
    return Cost(costs, groups, kind.round_bytes(run, one_way, stored))


@dataclass(frozen=True)
class MethodCost:
    """How a method's cost follows from its run."""

    groups: Callable[[Run, Architecture], tuple[str, ...]]
    """What it deals out."""
    keeps_slots: Callable[[Run], bool]
    """Optimizer state rests with the owners between rounds."""
    round_bytes: Callable[[Run, float, int], float]
    """Bytes of a round, from those of moving the parameters one way once and the slots that are stored."""


def _pull_and_push(run: Run, one_way: float, stored: int) -> float:
    return 2 * one_way * (1 + stored)


def _gradients_every_step(run: Run, one_way: float, stored: int) -> float:
    return 2 * one_way * run.method.local_steps


def _carries(run: Run) -> bool:
    return run.method.optimizer_state == "carry"


METHODS: dict[str, MethodCost] = {
    "ist": MethodCost(lambda run, network: run.method.dealt(network.groups), _carries, _pull_and_push),
    "local-sgd": MethodCost(lambda run, network: (), _carries, _pull_and_push),
    "data-parallel": MethodCost(lambda run, network: (), lambda run: True, _gradients_every_step),
}
