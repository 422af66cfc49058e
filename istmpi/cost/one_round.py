"""The bytes of one round, exactly: the sum over the legs of its route, for the deal that is drawn for it."""

from collections.abc import Mapping

import numpy as np

from istmpi.comm import ring
from istmpi.config import Run
from istmpi.cost.collectives import COLLECTIVES
from istmpi.cost.pairs import pair_bytes
from istmpi.engine.axes import Parameter, with_slots
from istmpi.engine.layout import Layout, Replicated
from istmpi.engine.partition import draw_ranks
from istmpi.engine.route import Leg, Route
from istmpi.engine.shares import Shares
from istmpi.engine.wire import form_of
from istmpi.methods import spec_of
from istmpi.models.architecture import Architecture

MOST_WORK = 10**9
"""The most work, as rounds times pairs of ranks times units, for exact sums; it takes some seconds."""


def run_bytes(
    run: Run, architecture: Architecture, ranks: int, smaller: Mapping[int, Architecture] | None = None
) -> int | None:
    """Return the bytes that all ranks hand to MPI in a whole run of its seed; None where they are not known exactly.

    They are not where ranks decide in training what they send, where shares follow times, or where sums take too long.
    ``smaller``: networks for images of other sides, where the run trains on some first.
    """
    work = run.train.rounds * ranks**2 * sum(architecture.lengths[name] for name in architecture.groups)
    names = {name for name, _ in run.phases()}
    if isinstance(run.method.shares, str) or "dynamic-averaging" in names or work > MOST_WORK:
        return None
    total = first = 0
    stretches = run.stretches() if smaller else [(name, 0, rounds) for name, rounds in run.phases()]
    for place, (name, side, rounds) in enumerate(stretches):
        phase, network = run.override({"method.name": name}), (smaller or {}).get(side, architecture)
        for number in range(first, first + rounds):
            total += sum(round_bytes(phase, network, ranks, number, fresh=number == first))
        first += rounds
        follows = [other for other, _, later in stretches[place + 1 :] if later][:1]
        if rounds and follows not in ([], [name]):  # the next method begins with the owners' values
            route, moved = _route(phase, network, ranks)
            total += sum(leg_bytes(leg, ranks, network.lengths).sum() for leg in route.flushed(moved, first - 1))
    return int(total)


def round_bytes(
    run: Run,
    architecture: Architecture,
    ranks: int,
    round: int,
    shares: Shares | None = None,
    fresh: bool | None = None,
) -> list[int]:
    """Return the bytes that each rank hands to MPI in a round, for its deal, perhaps with other ``shares``.

    ``fresh``: whether it is the first round of its method in a job, by default round 0. Such a round includes what the
    method sends once at the start. For dynamic averaging it is a round in which all ranks average.
    Only for methods that istmpi runs.
    """
    spec, sent, fresh = spec_of(run.method.name), np.zeros(ranks, dtype=np.int64), fresh or round == 0
    route, moved = _route(run, architecture, ranks, shares)
    if not spec.sends_at_start:
        legs = route.legs(moved, round, fresh)
        return sum(leg_bytes(leg, ranks, architecture.lengths) for leg in legs).tolist()
    if fresh:
        everything = with_slots(architecture.parameters, tuple(map(str, range(len(spec.slots(run))))))
        sent += leg_bytes(Leg("pull", everything, route.owners, route.deal(round)), ranks, architecture.lengths)
    if round >= spec.sends_since(run):
        for name in spec.sends:
            sent += spec.sends_in_a_round(run) * COLLECTIVES[name].in_run(run).sent(moved, route.owners, spec.wire(run))
    return sent.tolist()


def _route(
    run: Run, architecture: Architecture, ranks: int, shares: Shares | None = None
) -> tuple[Route, dict[str, Parameter]]:
    """Return the route of a run's method, and the parameters that travel on it with their slots."""
    spec = spec_of(run.method.name)

    def deal(number: int) -> Layout:
        if spec.members(run, ranks) < ranks:
            members = draw_ranks(ranks, run.method.fraction, run.train.seed, number)
            return Replicated(architecture.lengths, ranks, members)
        return spec.deal(run, architecture, ranks, number, shares and shares.of(number))

    moved = with_slots(architecture.parameters, tuple(map(str, range(1, spec.moved(run)))))
    return spec.route(run, architecture, ranks, deal), moved


def leg_bytes(leg: Leg, ranks: int, lengths: dict[str, int]) -> np.ndarray:
    """Return the bytes that each rank hands to MPI for a leg of a route: ``[rank]`` int64."""
    kind = leg.wire.kind if leg.wire else "float32"
    if leg.source is None:
        elements = {name: parameter.size(lengths) for name, parameter in leg.parameters.items()}
        itemsize = next((parameter.itemsize for parameter in leg.parameters.values()), 0)
        forms = {name: form_of(kind, name, parameter) for name, parameter in leg.parameters.items()}
        return np.array(ring.sent_bytes(elements, itemsize, ranks, forms))
    pairs = pair_bytes(leg.parameters, leg.source, leg.target, leg.exclude, kind)
    return pairs.sum(axis=1) - pairs.diagonal()
