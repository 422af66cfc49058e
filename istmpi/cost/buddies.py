"""What copies for the loss of a rank cost (`istmpi.methods.survival`): what is dealt out, as all have the rest."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from istmpi.config import Run
from istmpi.cost.holdings import Holdings, Number, Part
from istmpi.cost.pairs import pair_bytes
from istmpi.engine.axes import Parameter, with_slots
from istmpi.engine.layout import Owners, part_shape
from istmpi.engine.partition import Partition
from istmpi.methods import spec_of
from istmpi.models.architecture import Architecture


def copies(run: Run, ranks: int) -> bool:
    """Whether ranks of a run keep copies of each other's values."""
    return run.comm.survive and run.comm.buddies and ranks > 1


def copied_bytes(held: Holdings, part: Part) -> tuple[Number, Number]:
    """What each of these ranks sends to its buddy in a round, of one tensor for every parameter: its part, and rows.

    Of the rows those that changed at the end of the round before, expected over deals and ranks.
    """
    own = rows = 0
    for parameter in held.parameters.values():
        if parameter.pattern.dealt(held.groups):
            size = parameter.size(part.lengths) * parameter.itemsize
            own += size
            rows += size * held.origin(parameter, part).nobody
    return own, rows


def round_copies(run: Run, architecture: Architecture, ranks: int, round: int) -> np.ndarray:
    """Bytes of copies that each rank hands to MPI in a round, exactly: ``[rank]`` int64."""
    spec = spec_of(run.method.name)
    sent = np.zeros(ranks, dtype=np.int64)
    groups = spec.groups(run, architecture)
    if not (copies(run, ranks) and groups):
        return sent
    slots = tuple(map(str, range(1, spec.moved(run))))
    parameters = with_slots(
        {name: one for name, one in architecture.parameters.items() if one.pattern.dealt(groups)}, slots
    )
    deal = spec.deal(run, architecture, ranks, round)
    for one in parameters.values():
        sent += [one.itemsize * int(np.prod(part_shape(deal, one, rank))) for rank in range(ranks)]
    if round:
        stays = spec.stays_with_holders(run, architecture, ranks)
        before = spec.deal(run, architecture, ranks, round - 1)
        sent += _changed(parameters, before, deal if stays else None, Owners(architecture.lengths, ranks))
    return sent


def _changed(
    parameters: Mapping[str, Parameter], before: Partition, after: Partition | None, owners: Owners
) -> np.ndarray:
    """Bytes of each owner's rows that some rank held before, and none does after."""
    if not before.overlapping:
        return pair_bytes(parameters, before, owners, after).sum(axis=0)
    changed = np.zeros(owners.ranks, dtype=np.int64)
    for one in parameters.values():  # what several ranks hold counts once
        marks = np.zeros(one.pattern.shape(owners.lengths), dtype=bool)
        for rank in range(owners.ranks):
            axes = enumerate(one.pattern.axes)
            marks[np.ix_(*(np.asarray(before.positions(axis, at, rank), np.int64) for at, axis in axes))] = True
        for rank in range(owners.ranks):
            rows = owners.rows(len(marks), rank)
            changed[rank] += one.itemsize * int(marks[rows.start : rows.stop].sum())
    return changed
