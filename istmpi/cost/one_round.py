"""Counts the bytes of one round exactly: draws the round's deal, and adds up all transfers (legs)
of its route."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.cost.pairs import leg_bytes
from istmpi.engine.axes import with_slots
from istmpi.engine.layout import Replicated, TrainingLayout
from istmpi.engine.partition import draw_ranks
from istmpi.engine.route import PUSH, Leg, Route, select_dealt
from istmpi.engine.shares import Shares
from istmpi.network.architecture import Architecture

MOST_WORK = 10**8
"""The largest work for exact sums: rounds times pairs of ranks times units."""


def run_bytes(
    run: Run,
    architecture: Architecture,
    ranks: int,
    smaller: Mapping[int, Architecture] | None = None,
) -> int | None:
    """Return the bytes that all ranks send in training.

    None if shares change, for dynamic-averaging, or above `MOST_WORK`.
    """
    units = sum(architecture.lengths[name] for name in architecture.groups)
    work = run.train.rounds * ranks**2 * units
    stretches = run.stretches()
    names = [name for name, _, _ in stretches]
    if isinstance(run.method.shares, str) or "dynamic-averaging" in names or work > MOST_WORK:
        return None
    total = 0
    first = 0
    # The last stretch is followed by none: "".
    for (name, side, rounds), following in zip(stretches, [*names[1:], ""]):
        network = (smaller or {}).get(side, architecture)
        route = draw_route(run.override({"method.name": name}), network, ranks)
        for number in range(first, first + rounds):
            legs = route.legs(network.parameters, number, fresh=number == first)
            total += _sent(legs, network, ranks).sum()
        first += rounds
        if following not in ("", name):  # the next method begins with the owners' values
            moved = with_slots(network.parameters, route.slots)
            total += _sent(route.flushed(moved, first - 1), network, ranks).sum()
    return int(total)


def flushed_bytes(
    run: Run, architecture: Architecture, ranks: int, rounds: Sequence[int]
) -> int | None:
    """Return the bytes that bring the newest values to their owners for evaluations after
    ``rounds``, numbers from 1; None as in `run_bytes`."""
    units = sum(architecture.lengths[name] for name in architecture.groups)
    own_networks = find_method_spec(run.method.name).own_networks
    if isinstance(run.method.shares, str) or own_networks or run.method.finish:
        return None
    if len(rounds) * ranks**2 * units > MOST_WORK:
        return None
    route = draw_route(run, architecture, ranks)
    moved = with_slots(architecture.parameters, route.slots)
    total = 0
    for number in rounds:
        deal = number - 1
        # What left early is with those who train it next.
        if route.leaves_early(deal):
            deal += 1
        total += _sent(route.flushed(moved, deal), architecture, ranks).sum()
    return int(total)


def published_bytes(
    run: Run, architecture: Architecture, ranks: int, rounds: Sequence[int]
) -> int | None:
    """Return the bytes that bring subnets whose outputs are added up to their owners, for saves
    after ``rounds``; None as in `run_bytes`."""
    units = sum(architecture.lengths[name] for name in architecture.groups)
    unknown = isinstance(run.method.shares, str) or run.method.finish
    if unknown or ranks**2 * units > MOST_WORK:
        return None
    route = draw_route(run, architecture, ranks)
    deal = route.deal(0)
    moved = with_slots(architecture.parameters, route.stored)
    dealt = select_dealt(moved, deal)
    others = {name: parameter for name, parameter in moved.items() if name not in dealt}
    legs = [Leg(PUSH, dealt, source=deal, target=route.owners, shared=False)]
    # What is not dealt out is that of rank 0.
    first = Replicated(architecture.lengths, ranks, members=(0,))
    legs.append(Leg(PUSH, others, source=first, target=route.owners))
    return len(rounds) * int(_sent(legs, architecture, ranks).sum())


def round_bytes(
    run: Run, architecture: Architecture, ranks: int, round: int, shares: Shares | None = None
) -> list[int]:
    """Return the bytes that each rank sends in a round. ``shares`` replace those of the
    settings."""
    route = draw_route(run, architecture, ranks, shares)
    return _sent(
        route.legs(architecture.parameters, round, fresh=round == 0), architecture, ranks
    ).tolist()


def _sent(legs: Iterable[Leg], architecture: Architecture, ranks: int) -> np.ndarray:
    sent = np.zeros(ranks, dtype=np.int64)
    for leg in legs:
        sent += leg_bytes(leg, ranks, architecture.lengths)
    return sent


def draw_route(
    run: Run, architecture: Architecture, ranks: int, shares: Shares | None = None
) -> Route:
    """Return the route of a run, with the deals of its seed.

    ``shares`` replace those of the settings.
    """
    spec = find_method_spec(run.method.name)

    # Legs use the deals of three rounds. A partly redealt one is computed from round 0 on.
    @lru_cache(maxsize=4)
    def deal(number: int) -> TrainingLayout:
        if spec.members(run, ranks) < ranks:
            members = draw_ranks(ranks, run.method.fraction, run.train.seed, number)
            return Replicated(architecture.lengths, ranks, members)
        of_round = shares.of(number) if shares else None
        return spec.deal(run, architecture, ranks, number, of_round)

    return spec.route(run, architecture, ranks, deal)
