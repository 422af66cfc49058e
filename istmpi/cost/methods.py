"""How the cost of every method follows from its run: one entry a method. A new method needs one here, and no more."""

from collections.abc import Callable
from dataclasses import dataclass

from istmpi.config import Run
from istmpi.cost.collectives import ALL_GATHER, HALVING_DOUBLING, HOP, PULL, PUSH, RING, SERVER, Collective
from istmpi.cost.holdings import Holdings, Number
from istmpi.engine.partition import drawn_count
from istmpi.errors import ConfigError, did_you_mean
from istmpi.models.architecture import Architecture
from istmpi.optimizers import optimizer_spec


def _nothing(run: Run, network: Architecture) -> tuple[str, ...]:
    return ()


def _units(run: Run, network: Architecture) -> tuple[str, ...]:
    return run.method.dealt(network.groups, network.default_groups)


def _once(run: Run) -> int:
    return 1


def _every_step(run: Run) -> int:
    return run.method.local_steps


def _first(run: Run) -> int:
    return 0


def _never(run: Run) -> bool:
    return False


def _without_outer_step(run: Run) -> bool:
    return run.method.outer == (1, 0)


def _everybody(run: Run, ranks: int) -> int:
    return ranks


def _given_steps(run: Run, ranks: int, examples: int) -> int:
    return run.method.local_steps


def _passes(run: Run, ranks: int, examples: int) -> int:
    """Of a rank over its own examples, the last batch perhaps smaller."""
    own = examples if run.data.placement == "shared" else -(-examples // ranks)
    return run.method.epochs * -(-own // run.train.batch)


def _no_copies(run: Run, ranks: int, slots: int) -> int:
    return 0


def _for_the_outer_step(run: Run, ranks: int, slots: int) -> int:
    lr, momentum = run.method.outer
    return (lr != 1 or momentum != 0) + (momentum != 0)


def _trained(held: Holdings) -> Number:
    return held.held_elements


def _reduced(held: Holdings) -> Number:
    return 2 * (held.ranks - 1) * held.network_elements


def _gathered(held: Holdings) -> Number:
    return held.ranks * (held.ranks - 1) * held.network_elements


@dataclass(frozen=True)
class MethodCost:
    """What a method deals out, sends and keeps."""

    collectives: tuple[Collective, ...]
    """What is sent, one after the other."""
    times: Callable[[Run], int] = _once
    """How often in a round."""
    since: Callable[[Run], int] = _first
    """The first round in which it is."""
    groups: Callable[[Run, Architecture], tuple[str, ...]] = _nothing
    """The unit groups that are dealt out."""
    members: Callable[[Run, int], int] = _everybody
    """How many of so many ranks take part in a round."""
    steps: Callable[[Run, int, int], int] = _given_steps
    """Local steps in a round, on so many ranks and examples."""
    never_resets: bool = False
    """The optimizer's state rests with the owners between rounds whatever the run says."""
    moves_slots: bool = True
    """Where it rests there, it travels with the weights; else only the weights, or gradients, are sent."""
    outer: bool = False
    """An outer step may follow a round; its momentum rests with the owners."""
    start: tuple[Collective, ...] = ()
    """What is sent once, in the first round, with all that rests with the owners."""
    stays: Callable[[Run], bool] = _never
    """What several ranks are dealt stays with them between two rounds, as far as the next deal lets it."""
    owned_tensors: int = 1
    """Tensors that an owner has for the rows of every parameter, optimizer state left out."""
    copies: Callable[[Run, int, int], int] = _no_copies
    """Whole networks that a rank keeps beside the one it trains, on so many ranks and with so many stored slots."""
    synchronous: bool = False
    """All ranks take the same step: they may share one batch among them."""
    received: Callable[[Holdings], Number] = _trained
    """Elements that all ranks receive each time, as the paper counts: what they train on, own ones included."""
    overlaps: bool = False
    """What is sent in a step is sent while its backward pass still runs."""
    learns_from_others: bool = False
    """Each batch passes forward through the networks of all other ranks, too."""

    @property
    def deals(self) -> bool:
        """Unit groups are dealt out, if the network has any."""
        return self.groups is not _nothing

    @property
    def in_passes(self) -> bool:
        """A round is so many passes over the data, not method.local_steps."""
        return self.steps is _passes

    def stored(self, run: Run) -> int:
        """Slots that rest with the owners for every parameter."""
        keeps = self.never_resets or run.method.optimizer_state == "carry"
        return len(optimizer_spec(run.optimizer).slots) * keeps + (self.outer and run.method.outer[1] != 0)

    def moved(self, run: Run) -> int:
        """Tensors for every parameter that each collective moves: 1, and the optimizer state that travels along."""
        carries = self.moves_slots and run.method.optimizer_state == "carry"
        return 1 + len(optimizer_spec(run.optimizer).slots) * carries


LOCAL_SGD = MethodCost((RING,), outer=True, start=(PULL,), copies=_for_the_outer_step)

COSTS: dict[str, MethodCost] = {
    "ist": MethodCost((PULL, HOP, PUSH), groups=_units, outer=True, stays=_without_outer_step),
    "local-sgd": LOCAL_SGD,
    "data-parallel": MethodCost(
        (RING,),
        _every_step,
        never_resets=True,
        moves_slots=False,
        start=(PULL,),
        synchronous=True,
        received=_reduced,
        overlaps=True,
    ),
    "diloco": LOCAL_SGD,
    "fedavg": MethodCost(
        (PULL, PUSH),
        members=lambda run, ranks: drawn_count(ranks, run.method.fraction),
        steps=_passes,
        outer=True,
    ),
    # At most: what is sent where all ranks average in every round.
    "dynamic-averaging": MethodCost(
        (PUSH, PULL),
        start=(PULL,),
        copies=lambda run, ranks, slots: 2 + slots,  # the reference; all of a round's start
    ),
    "codistillation": MethodCost(
        (ALL_GATHER,),
        since=lambda run: run.method.burn_in,
        never_resets=True,
        moves_slots=False,
        start=(PULL,),
        copies=lambda run, ranks, slots: ranks + slots,  # the others'; all of a round's start
        received=_gathered,
        learns_from_others=True,
    ),
}
"""The methods that ``istmpi train`` runs, by name."""

RIVALS: dict[str, MethodCost] = {
    "data-parallel-broadcast": MethodCost((SERVER,), _every_step, owned_tensors=0, synchronous=True),
    "data-parallel-halving-doubling": MethodCost(
        (HALVING_DOUBLING,), _every_step, owned_tensors=0, synchronous=True, received=_reduced, overlaps=True
    ),
    "ist-push-pull": MethodCost((PULL, PUSH), groups=_units),
}
"""What others run, or could be run: only for comparison."""


def method_cost(name: str) -> MethodCost:
    """The entry of a method or rival; ConfigError with the nearest name when there is none."""
    known = COSTS | RIVALS
    if name not in known:
        raise ConfigError(f"method.name = {name!r} is not known{did_you_mean(name, known)}")
    return known[name]
