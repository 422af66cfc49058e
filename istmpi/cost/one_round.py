"""Counts the bytes of one round exactly: draws the round's deal, and adds up all transfers (legs)
of its route."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from istmpi.config import Run
from istmpi.cost.collectives import COLLECTIVES
from istmpi.cost.pairs import leg_bytes
from istmpi.engine.axes import Parameter, with_slots
from istmpi.engine.layout import Layout, Replicated
from istmpi.engine.partition import draw_ranks
from istmpi.engine.route import Leg, Route
from istmpi.engine.shares import Shares
from istmpi.methods import spec_of
from istmpi.models.architecture import Architecture

MOST_WORK = 10**8
"""The largest work for exact sums: rounds times pairs of ranks times units."""


def run_bytes(
    run: Run,
    architecture: Architecture,
    ranks: int,
    smaller: Mapping[int, Architecture] | None = None,
) -> int | None:
    """The bytes that all ranks send in training; None if shares change, for dynamic-averaging, or
    above `MOST_WORK`."""
    work = (
        run.train.rounds
        * ranks**2
        * sum(architecture.lengths[name] for name in architecture.groups)
    )
    stretches = run.stretches()
    names = [name for name, _, _ in stretches]
    if isinstance(run.method.shares, str) or "dynamic-averaging" in names or work > MOST_WORK:
        return None
    total = first = 0
    for (name, side, rounds), following in zip(stretches, [*names[1:], ""]):
        phase, network = (
            run.override({"method.name": name}),
            (smaller or {}).get(side, architecture),
        )
        route, moved = _route(phase, network, ranks)
        for number in range(first, first + rounds):
            total += _sent(phase, network, route, moved, number, fresh=number == first).sum()
        first += rounds
        if following not in ("", name):  # the next method begins with the owners' values
            total += sum(
                leg_bytes(leg, ranks, network.lengths).sum()
                for leg in route.flushed(moved, first - 1)
            )
    return int(total)


def round_bytes(
    run: Run, architecture: Architecture, ranks: int, round: int, shares: Shares | None = None
) -> list[int]:
    """Return the bytes that each rank sends in a round. ``shares`` replace those of the
    settings."""
    route, moved = _route(run, architecture, ranks, shares)
    return _sent(run, architecture, route, moved, round, round == 0).tolist()


def _sent(
    run: Run,
    architecture: Architecture,
    route: Route,
    moved: Mapping[str, Parameter],
    round: int,
    fresh: bool,
) -> np.ndarray:
    spec, ranks = spec_of(run.method.name), route.owners.ranks
    sent = np.zeros(ranks, dtype=np.int64)
    if not spec.replicated:
        return sum(
            (
                leg_bytes(leg, ranks, architecture.lengths)
                for leg in route.legs(moved, round, fresh)
            ),
            sent,
        )
    if fresh:
        everything = with_slots(
            architecture.parameters, tuple(map(str, range(len(spec.slots(run)))))
        )
        sent += leg_bytes(
            Leg("pull", everything, route.owners, route.deal(round)), ranks, architecture.lengths
        )
    if round >= spec.sends_since(run):
        for name in spec.sends:
            sent += spec.sends_in_a_round(run) * COLLECTIVES[name](run).sent(
                moved, route.owners, spec.wire(run)
            )
    return sent


def _route(
    run: Run, architecture: Architecture, ranks: int, shares: Shares | None = None
) -> tuple[Route, dict[str, Parameter]]:
    spec = spec_of(run.method.name)

    @lru_cache(
        maxsize=4
    )  # legs use the deals of three rounds; a partly redealt one is computed from round 0 on
    def deal(number: int) -> Layout:
        if spec.members(run, ranks) < ranks:
            members = draw_ranks(ranks, run.method.fraction, run.train.seed, number)
            return Replicated(architecture.lengths, ranks, members)
        return spec.deal(run, architecture, ranks, number, shares and shares.of(number))

    moved = with_slots(architecture.parameters, tuple(map(str, range(1, spec.moved(run)))))
    return spec.route(run, architecture, ranks, deal), moved
