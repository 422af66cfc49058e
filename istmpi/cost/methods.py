"""How the cost of every method follows from its run: one entry a method. A new method needs one here, and no more."""

from collections.abc import Callable
from dataclasses import dataclass

from istmpi.config import Run
from istmpi.cost.collectives import HALVING_DOUBLING, HOP, PULL, PUSH, RING, SERVER, Collective
from istmpi.cost.holdings import Holdings, Number
from istmpi.errors import ConfigError, did_you_mean
from istmpi.models.architecture import Architecture


def _nothing(run: Run, network: Architecture) -> tuple[str, ...]:
    return ()


def _units(run: Run, network: Architecture) -> tuple[str, ...]:
    return run.method.dealt(network.groups)


def _once(run: Run) -> int:
    return 1


def _every_step(run: Run) -> int:
    return run.method.local_steps


def _carries(run: Run) -> bool:
    return run.method.optimizer_state == "carry"


def _always(run: Run) -> bool:
    return True


def _trained(held: Holdings) -> Number:
    return held.held_elements


def _reduced(held: Holdings) -> Number:
    return 2 * (held.ranks - 1) * held.network_elements


@dataclass(frozen=True)
class MethodCost:
    """What a method deals out, sends and keeps."""

    collectives: tuple[Collective, ...]
    """What is sent, one after the other."""
    times: Callable[[Run], int] = _once
    """How often in a round."""
    groups: Callable[[Run, Architecture], tuple[str, ...]] = _nothing
    """The unit groups that are dealt out."""
    keeps_slots: Callable[[Run], bool] = _carries
    """Optimizer state rests with the owners between rounds."""
    moves_slots: bool = True
    """Where it rests there, it travels with the weights; else only the weights, or gradients, are sent."""
    start: tuple[Collective, ...] = ()
    """What is sent once, in the first round, optimizer state included where it is kept."""
    owned_tensors: int = 1
    """Tensors that an owner has for the rows of every parameter, optimizer state left out."""
    synchronous: bool = False
    """All ranks take the same step: they may share one batch among them."""
    received: Callable[[Holdings], Number] = _trained
    """Elements that all ranks receive each time, as the paper counts: what they train on, own ones included."""
    overlaps: bool = False
    """What is sent in a step is sent while its backward pass still runs."""


COSTS: dict[str, MethodCost] = {
    "ist": MethodCost((PULL, PUSH), groups=_units),
    "local-sgd": MethodCost((PULL, PUSH)),
    "data-parallel": MethodCost(
        (PUSH, PULL),
        _every_step,
        keeps_slots=_always,
        moves_slots=False,
        start=(PULL,),
        owned_tensors=2,  # weights and mean gradients
        synchronous=True,
    ),
}
"""The methods that ``istmpi train`` runs, by name."""

RIVALS: dict[str, MethodCost] = {
    "data-parallel-broadcast": MethodCost((SERVER,), _every_step, owned_tensors=0, synchronous=True),
    "data-parallel-ring": MethodCost(
        (RING,), _every_step, owned_tensors=0, synchronous=True, received=_reduced, overlaps=True
    ),
    "data-parallel-halving-doubling": MethodCost(
        (HALVING_DOUBLING,), _every_step, owned_tensors=0, synchronous=True, received=_reduced, overlaps=True
    ),
    "ist-hop": MethodCost((HOP,), groups=_units),
}
"""What others run, or could be run: only for comparison."""


def method_cost(name: str) -> MethodCost:
    """The entry of a method or rival; ConfigError with the nearest name when there is none."""
    known = COSTS | RIVALS
    if name not in known:
        raise ConfigError(f"method.name = {name!r} is not known{did_you_mean(name, known)}")
    return known[name]
