"""Scores both forms of a network, of which the better one is kept, with few messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from istmpi.comm import Communicator
from istmpi.data.batch import Batch
from istmpi.errors import DivergedError
from istmpi.evaluation.blocks import SharedBlocks
from istmpi.evaluation.full import FullNetwork
from istmpi.evaluation.logits import Logits
from istmpi.evaluation.passing import Passing
from istmpi.evaluation.score import PointTotals, Score

if TYPE_CHECKING:
    from istmpi.outputs import Outputs

MakeTotals = Callable[[bool], PointTotals]
"""A function that returns the totals of a network; its argument is `Part.details`."""


@dataclass(frozen=True)
class Part:
    """Examples that both forms score."""

    batches: Sequence[Batch]
    details: bool = False
    """True for scores that take many bytes, too."""


@dataclass(frozen=True)
class Tally:
    """The sums of a network over a part."""

    totals: PointTotals
    sums: np.ndarray

    def score(self, form: str) -> Score:
        """Return the score; collective for an area under a curve. Raises DivergedError if it is not
        finite."""
        require_finite(self.sums)
        return self.totals.score(self.sums, form)


@dataclass(frozen=True)
class Scored:
    """A score that is known before it is asked for."""

    split: str
    details: bool
    tally: Tally


def require_finite(sums: np.ndarray) -> None:
    """Raise DivergedError if the sums of all ranks are not finite."""
    if not np.isfinite(sums).all():
        error = DivergedError("the outputs of the full network are not finite")
        error.everywhere = True
        raise error


def pass_subnets(
    passing: Passing,
    subnets: SharedBlocks,
    parts: Sequence[Part],
    make_totals: MakeTotals,
    logits: Logits | None,
) -> list[Tally]:
    """Return the tallies of subnets, whose outputs for all parts are added up together.
    ``logits`` takes the outputs of the first part. Collective."""
    outputs = subnets.add_up_together(pass_here(passing, subnets, parts))
    return tally_parts(passing, outputs, parts, make_totals, logits)


def pass_here(passing: Passing, subnets: SharedBlocks, parts: Sequence[Part]) -> list[Outputs]:
    """Return this rank's outputs for the batches of all parts. Not collective."""
    here = []
    for part in parts:
        here += [passing.compute(subnets.pass_here, batch) for batch in part.batches]
    return here


def tally_parts(
    passing: Passing,
    outputs: Iterable[Outputs],
    parts: Sequence[Part],
    make_totals: MakeTotals,
    logits: Logits | None,
) -> list[Tally]:
    """Return the tallies of parts from the outputs for their batches. ``logits`` takes those of the
    first part."""
    in_order = iter(outputs)
    tallies = []
    for part in parts:
        totals = make_totals(part.details)
        sums = passing.add_up(lambda *_: next(in_order), part.batches, totals=totals, logits=logits)
        tallies.append(Tally(totals, sums))
        logits = None
    return tallies


def pass_on_one(
    passing: Passing,
    network: FullNetwork,
    parts: Sequence[Part],
    make_totals: MakeTotals,
    communicator: Communicator,
    other: float,
) -> tuple[list[Tally], float]:
    """Return the tallies of a full network that rank 0 alone has, and rank 0's ``other``, which
    tell all ranks the same in one message. Collective."""
    all_totals = [make_totals(part.details) for part in parts]
    parts_of_message = [np.array([other])]
    for part, totals in zip(parts, all_totals, strict=True):
        sums = np.zeros(totals.count)
        if network.computes:
            sums = passing.add_up(network, part.batches, totals)
        parts_of_message.append(sums)
    message = np.concatenate(parts_of_message)
    communicator.broadcast(message, root=0)
    tallies = []
    start = 1
    for totals in all_totals:
        stop = start + totals.count
        tallies.append(Tally(totals, message[start:stop]))
        start = stop
    return tallies, float(message[0])
