"""Counts the waits of a run's rounds: the collective calls in which ranks wait for each other, one
after the other, as `istmpi.comm.ledger` counts them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from istmpi.comm import STAGING_BYTES, ring
from istmpi.comm.codec import Wire
from istmpi.config import Run
from istmpi.config.legs import through_owners
from istmpi.config.methods import MethodSpec, find_method_spec
from istmpi.cost.one_round import draw_route
from istmpi.engine.axes import with_slots
from istmpi.engine.layout import count_largest_message, pieces_to_move
from istmpi.engine.packed_sizes import Largest
from istmpi.engine.route import FRAGMENT, GATHER, MEAN, PUSH, Leg, select_dealt
from istmpi.engine.slots import select_weights
from istmpi.engine.wire import choose_forms
from istmpi.network.architecture import Architecture

CALLS_A_ROUND = 2
"""The collective calls of small messages in a round: ranks agree that all have taken their steps,
and tell each other their measurements."""
_AT_OWNERS = ("easgd",)
"""The methods with a network for each rank whose evaluated network is always with its owners."""
_CALLS_OF_FIRST_SUBNETS = 2
"""The calls in which ranks that add up outputs learn what the sum has once."""


@dataclass(frozen=True)
class Waits:
    """The number of calls in which ranks wait for each other, one after the other."""

    calls: int | None = None
    """The most; None if they are not known before the run."""
    least: int | None = None
    """The fewest, which differ from the most if scores decide the form of the network."""
    unknown: str = ""
    """Why the number is not known, in words; empty if it is."""


class UnknownWaits(Exception):
    """Raised where the waits of a run are not known before it; its text says why."""


def count_round_waits(
    run: Run, architecture: Architecture, ranks: int, pauses: Collection[int]
) -> int:
    """Return the waits of a new run's rounds.

    ``pauses``: the rounds, from 1, that an evaluation or a checkpoint follows, after which ranks
    meet. Raises UnknownWaits.
    """
    if ranks == 1:
        return 0
    _require_known(run)
    if any(name == "dynamic-averaging" for name, _ in run.phases()):
        raise UnknownWaits("dynamic-averaging sends only what has moved far")
    rounds = run.train.rounds
    total = len({number for number in pauses if number < rounds})
    first = 0
    stretches = run.stretches()
    names = [name for name, _, _ in stretches]
    for (name, _, count), following in zip(stretches, [*names[1:], ""]):
        of_method = run.override({"method.name": name})
        counter = _Counter(of_method, find_method_spec(name), architecture, ranks)
        total += counter.count_first(is_first=first == 0, is_met=first in pauses)
        for number in range(first, first + count):
            total += counter.count_round(number, is_fresh=number == first)
        first += count
        if following:
            total += counter.count_flush(first - 1)
    return total


@dataclass(frozen=True)
class Phase:
    """The rounds of a run with one method."""

    run: Run
    """The run with this method as its only one."""
    rounds: list[int]
    """Some rounds, from 1, after which ranks have newer values than owners."""
    is_handed_over: bool
    """True if the phase's last round is one of them, too, and another method follows: owners have
    the newest values then, and no rank has any."""


def divide_by_method(run: Run, rounds: Collection[int]) -> list[Phase]:
    """Return the phases of a run, each with those of ``rounds``, from 1, that it has."""
    phases = []
    before = 0
    for name, count in run.phases():
        last = before + count
        is_followed = last < run.train.rounds
        of_phase = [number for number in rounds if before < number <= last]
        phases.append(
            Phase(
                run=run.override({"method.name": name}),
                rounds=[number for number in of_phase if number < last or not is_followed],
                is_handed_over=is_followed and last in of_phase,
            )
        )
        before = last
    return phases


def count_flush_waits(
    run: Run, architecture: Architecture, ranks: int, rounds: Collection[int]
) -> int:
    """Return the waits until owners have the newest values, for evaluations or saves after
    ``rounds``, numbers from 1. Raises UnknownWaits."""
    _require_known(run)
    calls = 0
    for phase in divide_by_method(run, rounds):
        spec = find_method_spec(phase.run.method.name)
        counter = _Counter(phase.run, spec, architecture, ranks)
        calls += sum(counter.count_flush(number - 1) for number in phase.rounds)
    return calls


def _require_known(run: Run) -> None:
    if isinstance(run.method.shares, str):
        raise UnknownWaits("shares change during the run")
    if any(side for _, side, _ in run.stretches()):
        raise UnknownWaits("the size of images changes")
    if run.method.finish and any(find_method_spec(name).sums_outputs for name, _ in run.phases()):
        raise UnknownWaits("one of two methods adds up outputs")


class _Counter:
    """Counts the calls of a method's rounds."""

    def __init__(self, run: Run, spec: MethodSpec, architecture: Architecture, ranks: int):
        self._run = run
        self._spec = spec
        self._architecture = architecture
        self._ranks = ranks
        route = draw_route(run, architecture, ranks)
        # The legs of a round do not depend on the units of its deal, and many deals take long.
        self._route = replace(route, deal=lambda number: route.deal(number % 2))
        self._counted: dict[tuple[bool, ...], int] = {}

    def count_first(self, is_first: bool, is_met: bool) -> int:
        """Return the calls that only the method's first round has. ``is_first``: True for the first
        method; ``is_met``: True if the round begins with a call that is counted already."""
        calls = 0
        # Ranks compare their deals, or meet.
        if not is_met and (is_first or self._route.groups):
            calls += 1
        if self._route.early:
            # They need the deal of the round after it, too.
            calls += 1
            # The communicator of a first method's exchange is made at the start.
            calls += int(not is_first)
            calls += self._count_empty_pull(is_first)
        if self._spec.sums_outputs:
            calls += _CALLS_OF_FIRST_SUBNETS
        return calls

    def _count_empty_pull(self, is_first: bool) -> int:
        """Return 1 if parts are pulled of which ranks compute all values, which no leg has."""
        number = int(not is_first)
        moved = with_slots(self._architecture.parameters, self._route.slots)
        pulled = select_dealt(moved, self._route.deal(number))
        return int(len(self._route.computed_in(pulled, number)) == len(pulled))

    def count_round(self, number: int, is_fresh: bool) -> int:
        """Return the calls of a round: those of its legs, and of its agreements."""
        route = self._route
        kind = (
            is_fresh,
            number == 0,
            number >= route.since,
            route.mean_is_due(number),
            route.leaves_early(number),
        )
        if kind not in self._counted:
            legs = route.legs(self._architecture.parameters, number, is_fresh)
            one_by_one: list[Leg] = []
            if self._spec.legs is through_owners:
                # To the owners and back, a parameter at a time.
                one_by_one = legs[-2:]
                legs = legs[:-2]
            calls = sum(map(self._count_leg, legs))
            calls += sum(len(select_weights(leg.parameters)) for leg in one_by_one)
            self._counted[kind] = calls
        return self._counted[kind] + self._count_agreements()

    def count_flush(self, number: int) -> int:
        """Return the calls that bring the newest values to their owners after a round."""
        route = self._route
        if self._spec.own_networks:
            return self._count_published()
        # What left early is with those who train it next.
        if route.leaves_early(number):
            number += 1
        moved = with_slots(self._architecture.parameters, route.slots)
        return sum(map(self._count_leg, route.flushed(moved, number)))

    def _count_published(self) -> int:
        """Return the calls in which the owners get the network that is evaluated, of those that
        ranks have."""
        if self._spec.name in _AT_OWNERS:
            return 0
        moved = with_slots(self._architecture.parameters, self._route.stored)
        self._require_one_message(Leg(PUSH, moved, self._route.deal(0), self._route.owners))
        return 1

    def _count_agreements(self) -> int:
        settings = self._run.method
        if self._spec.sends_every_step:
            # Ranks vote on a stop during each step but the last.
            return CALLS_A_ROUND + settings.local_steps - 1
        if self._spec.sums_outputs and settings.local_steps == 1 and self._run.optimizer.clip:
            return CALLS_A_ROUND + 1
        return CALLS_A_ROUND

    def _count_leg(self, leg: Leg) -> int:
        if isinstance(leg.wire, Largest):
            return leg.times
        if leg.name == FRAGMENT:
            # A vote on a stop travels with it.
            return ring.CALLS + 1
        if leg.name == MEAN:
            return leg.times * self._count_mean(leg)
        if leg.name == GATHER:
            # One parameter at a time.
            return len(select_weights(leg.parameters))
        self._require_one_message(leg)
        return 1

    def _count_mean(self, leg: Leg) -> int:
        lengths = self._architecture.lengths
        elements = {name: parameter.size(lengths) for name, parameter in leg.parameters.items()}
        itemsize = next(iter(leg.parameters.values())).itemsize
        kind = "float32"
        if isinstance(leg.wire, Wire):
            kind = leg.wire.kind
        forms = choose_forms(kind, leg.parameters)
        return ring.count_calls(elements, itemsize, self._ranks, forms)

    def _require_one_message(self, leg: Leg) -> None:
        """Raise UnknownWaits if a leg's messages may pass a buffer in several pieces, whose number
        the deal decides."""
        if leg.source is None or leg.target is None:
            return
        layouts = (leg.source, leg.target, leg.exclude)
        pieces = [piece for _, _, piece in pieces_to_move(leg.parameters, layouts, leg.shared)]
        nbytes = count_largest_message(pieces, leg.source, leg.target)
        if nbytes > STAGING_BYTES // self._ranks:
            raise UnknownWaits("messages may be longer than their buffer")
