"""The bytes of one round, exactly: for the deal that is drawn for it."""

from dataclasses import replace

import numpy as np

from istmpi.config import Run
from istmpi.cost.collectives import COLLECTIVES, Layouts
from istmpi.engine.axes import with_slots
from istmpi.engine.layout import Owners, Replicated
from istmpi.engine.partition import Partition, draw_ranks
from istmpi.engine.shares import Shares
from istmpi.methods import spec_of
from istmpi.models.architecture import Architecture

ARRIVING = ("pull", "hop")
"""What a rank gets to train on."""


def round_bytes(
    run: Run, architecture: Architecture, ranks: int, round: int, shares: Shares | None = None
) -> list[int]:
    """Bytes that each rank hands to MPI in a round, exactly: for the deal of that round, perhaps with other ``shares``.

    The first round includes what its method sends once at the start; of dynamic averaging it is the most that a round
    sends in which all ranks average. Only for methods that istmpi runs.
    """
    spec, settings = spec_of(run.method.name), run.method
    by_ring, stays = (of(run, architecture, ranks) for of in (spec.shares_by_ring, spec.stays_with_holders))
    owners = Owners(architecture.lengths, ranks)

    def deal(number: int) -> Partition:
        return spec.deal(run, architecture, ranks, number, shares and shares.of(number))

    if spec.members(run, ranks) < ranks:
        drawn = draw_ranks(ranks, settings.fraction, run.train.seed, round)
        layouts = Layouts(owners, Replicated(architecture.lengths, ranks, drawn))
    elif stays:
        layouts = Layouts(owners, deal(round), deal(round - 1) if round else None, deal(round + 1))
    else:
        layouts = Layouts(owners, deal(round))
    layouts = replace(layouts, wire=spec.wire(run), pulled_exactly=round == 0 and (by_ring or stays))
    if by_ring:
        due = (round + 1) % settings.share_every == 0
        layouts = replace(layouts, by_ring=True, first=round == 0, due=due)
    uses = []
    if round >= spec.sends_since(run):
        uses += [(name, spec.sends_in_a_round(run), spec.moved(run), layouts) for name in spec.sends]
    if spec.leaves_early(run, architecture, ranks):
        # What a round begins with has come in the one before it, but for the first of all.
        uses = [one for one in uses if one[0] not in ARRIVING or round == 0]
        if round + 1 not in run.last_rounds():
            next = replace(layouts, holders=deal(round + 1), before=deal(round), first=False, pulled_exactly=False)
            uses += [(name, 1, spec.moved(run), next) for name in ARRIVING]
    if round == 0:
        exactly = replace(layouts, wire="float32")
        uses += [(name, 1, 1 + len(spec.slots(run)), exactly) for name in spec.sends_at_start]
    sent = np.zeros(ranks, dtype=np.int64)
    for name, times, tensors, how in uses:
        slots = tuple(map(str, range(1, tensors)))
        sent += times * COLLECTIVES[name].of(run).sent(with_slots(architecture.parameters, slots), how)
    return sent.tolist()
