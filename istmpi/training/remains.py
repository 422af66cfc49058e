"""What is to be done where ranks are lost: which round counts, and whose part each of those that are left plays.

Ranks are numbered as before the loss, but for places among those that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from istmpi.comm import Communicator
from istmpi.engine.axes import Parameter
from istmpi.engine.layout import Layout
from istmpi.engine.slots import Slot, weights_among
from istmpi.engine.store import ParameterStore
from istmpi.engine.transfer import Transfer
from istmpi.methods.outer import Outer
from istmpi.methods.spec import START
from istmpi.methods.survival import Layer, Seen, Survival


@dataclass(frozen=True)
class Report:
    """What one of those that are left has, and what it knows."""

    rank: int
    rounds: tuple[int, ...]
    """Of its layers."""
    copied: tuple[int, ...]
    """Those of them in which it has the part of the rank before."""
    rows: tuple[str, ...] | None
    """Of what it has the owned rows of the rank before; None where there is no copy."""
    steps: Mapping[int, tuple[int, int, float | None]]
    """Of each layer: local steps done, steps in all, and their mean loss."""
    slots: tuple[str, ...]
    """What it keeps beside parameters."""

    @staticmethod
    def of(survival: Survival) -> Report:
        layers = survival.layers
        return Report(
            survival.rank,
            tuple(layer.round for layer in layers),
            tuple(layer.round for layer in layers if layer.copy is not None),
            None if survival.rows is None else tuple(survival.rows),
            {layer.round: (layer.local_steps, layer.steps, layer.loss) for layer in layers},
            tuple(name for name in survival.store.parameters if isinstance(name, Slot)),
        )


@dataclass(frozen=True)
class Plan:
    """Who is left, and what the network is made of."""

    left: tuple[int, ...]
    lost: tuple[int, ...]
    buddies: Mapping[int, int]
    """Of each lost rank whose rows somebody has a copy of, the place of that buddy among those left."""
    round: int | None
    """The last round that all those left have begun; None where there is none since the ranks are the same."""
    steps: int
    """Local steps done of it, by the rank that did most."""
    complete: bool
    """No local steps of it are left."""
    loss: float | None
    """The mean over those that are left; None where none of them has come to the end of its local steps."""
    layers: tuple[int, ...]
    """The rounds of which the values count, a later one's above an earlier one's."""

    @property
    def orphans(self) -> tuple[int, ...]:
        """Lost ranks of which nobody has a copy."""
        return tuple(rank for rank in self.lost if rank not in self.buddies)


def planned(ranks: int, reports: Sequence[Report]) -> Plan:
    """What becomes of so many ranks of which these are left; the same on each of them."""
    left = tuple(report.rank for report in reports)
    lost = tuple(sorted({*range(ranks)} - {*left}))
    buddies = {}
    for place, report in enumerate(reports):
        before = (report.rank - 1) % ranks
        if before in lost and report.rows is not None:
            buddies[before] = place
    if not all(report.rounds for report in reports):
        return Plan(left, lost, buddies, None, 0, False, None, ())
    round = min(max(report.rounds) for report in reports)
    steps, wanted, losses = zip(*(report.steps[round] for report in reports))
    known = [loss for loss in losses if loss is not None]
    copied = len(buddies) == len(lost) and all(round in reports[place].copied for place in buddies.values())
    # What has not come of this round's copies is made up by the round before, as far as it goes.
    both = not copied and all(round - 1 in report.rounds for report in reports)
    return Plan(
        left,
        lost,
        buddies,
        round,
        max(steps),
        max(steps) >= max(wanted),
        sum(known) / len(known) if known else None,
        (round - 1, round) if both else (round,),
    )


def rebuilt(
    plan: Plan,
    reports: Sequence[Report],
    survival: Survival,
    communicator: Communicator,
    base: Callable[[ParameterStore], None],
    synchronous: bool,
    outer: Outer,
) -> ParameterStore:
    """The owned rows of the network on those that are left. Collective.

    ``base``: fills a store with what there is where nobody has a copy of a lost rank's rows. ``synchronous``: all
    ranks have the same weights after the same local step, so that those count that did most. ``outer``: the step that
    follows a round.
    """
    old = survival.store
    weights = {name: old.parameters[name] for name in weights_among(old.parameters)}
    new = ParameterStore(weights, old.owners.lengths, communicator.size, communicator.rank)
    common = set.intersection(*(set(report.slots) for report in reports))
    new.add_slots([name for name in old.parameters if name in common])
    new.scale, new.fitted = old.scale, old.fitted
    if plan.orphans:
        base(new)

    def move(
        layout: Layout,
        as_rank: Sequence[int | None],
        parameters: Mapping[str, Parameter],
        tensors: Mapping[str, torch.Tensor],
    ) -> None:
        if any(rank is not None for rank in as_rank):
            moved = {name: of for name, of in parameters.items() if name in new.parameters}
            seen = Seen(layout, tuple(as_rank))
            Transfer(moved, seen, new.owners, communicator.rank).run(tensors, new.tensors, communicator)

    played = {place: rank for rank, place in plan.buddies.items()}
    absent = [played.get(place) for place in range(len(plan.left))]
    copied = set.intersection({*old.parameters}, *(set(reports[place].rows or ()) for place in played))
    move(old.owners, absent, {name: of for name, of in old.parameters.items() if name in copied}, survival.rows or {})
    move(old.owners, plan.left, old.parameters, old.tensors)
    for round in plan.layers:
        layer = next(layer for layer in survival.layers if layer.round == round)
        values, groups = layer.values, layer.values.layout.held(survival.rank)
        there = [rank if round in report.copied else None for rank, report in zip(absent, reports, strict=True)]
        apart = {name: of for name, of in values.parameters.items() if of.pattern.dealt(groups)}
        move(values.layout, there, apart, layer.copy or {})
        trained = [None if synchronous and report.steps[round][0] < plan.steps else report.rank for report in reports]
        move(values.layout, trained, values.parameters, values.tensors)
    if plan.layers:
        _follow(layer, new, outer, plan.complete)
    return new


def _follow(layer: Layer, store: ParameterStore, outer: Outer, complete: bool) -> None:
    """Take the outer step behind a round on the owned rows, or keep where it starts for a round that goes on."""
    start = layer.values.start
    if not start:
        return
    rows = {
        name: start[name][where.start : where.stop].clone()
        for name, where in (
            (name, store.owners.positions(store.parameters[name].pattern.axes[0], 0, store.rank)) for name in start
        )
    }
    outer.start = {name: values.to("cpu") for name, values in rows.items()}
    if complete:
        outer.step(store.tensors)
    else:
        store.add_slots([Slot(name, START) for name in start])
        outer.suspend(store.tensors)
