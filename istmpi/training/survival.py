"""Going on without lost ranks: what is left of the network moves to those that are left, who train on in-process.

Everything that needs others is made first and taken over at once behind a barrier. Whoever gets through it knows that
all others have come to it, with all that they need to follow: so where a further rank is lost meanwhile, one that got
through decides for all, and else all go back to what they had before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from istmpi.comm import StopGossip
from istmpi.engine.store import ParameterStore
from istmpi.errors import ConfigError, DivergedError, StuckError
from istmpi.methods import spec_of
from istmpi.methods.outer import Outer
from istmpi.methods.survival import Survival
from istmpi.training.loop import Training
from istmpi.training.progress import Counts, Loss
from istmpi.training.remains import Plan, Report, planned, rebuilt
from istmpi.training.resolution import Size, shared_out

Base = Callable[[ParameterStore], None]


def require_survivable(training: Training) -> None:
    """Refuse, with a ConfigError, a run that cannot go on without a rank."""
    run, communicator = training.run, training.communicator
    why = communicator.cannot_lose_ranks() if communicator.size > 1 else ""
    if why:
        raise ConfigError(
            f"comm.survive = true: {why}. Start it with mpirun --with-ft ulfm of Open MPI 5 (istmpi doctor says "
            f"whether that works), or leave --survive out."
        )
    for phase, _ in training.phases:
        if why := spec_of(phase.method.name).dies_with_a_rank(phase, training.architecture):
            raise ConfigError(f"comm.survive = true: {why}. Leave --survive out: checkpoints and --resume do without.")
    if run.train.resolution:
        raise ConfigError("comm.survive = true does not go with train.resolution. Leave one out.")


def protect(training: Training) -> None:
    """Have a run survive the loss of ranks from now on. Collective."""
    training.stop.survives = True
    training.survival = Survival(training.store, training.communicator, training.run.comm.buddies)
    training.method.job.survival = training.survival


@dataclass(frozen=True)
class Regrouped:
    """All that those that are left go on with."""

    plan: Plan
    sizes: dict[int, Size]
    hosts: list[str]
    store: ParameterStore
    survival: Survival
    gossip: StopGossip
    reasons: list[str]
    counts: list[tuple[Counts, tuple[float, int, int]]]
    """What every rank has counted, and its seconds, bytes and examples since the round under way began."""


def go_on(training: Training, base: Base, told: bool = False) -> list[Loss]:
    """Have those ranks that are left go on with the run; who was lost. Collective among them.

    ``base``: fills a store with what there is of ranks of whose rows nobody has a copy. ``told``: the others know
    already that somebody was lost. StuckError on all of them where those that are lost may go on as well.
    """
    communicator, began, lost = training.communicator, time.monotonic(), []
    pending: Regrouped | None = None
    while True:
        communicator.revoke()
        if not told:
            communicator.agree(False)
        told = False
        communicator.shrink()
        try:
            generations = communicator.allgather(len(training.losses))
            if pending and max(generations) > len(training.losses):
                lost += take(training, pending, began)
                pending = None
            require_most(training)
            pending = regrouped(training, base)
            communicator.barrier()
        except Exception as error:
            if not communicator.tells_of_a_loss(error):
                raise
            continue
        return [*lost, *take(training, pending, began)]


def require_most(training: Training) -> None:
    """StuckError unless these are most of the ranks that went on together last, or half of them with the first.

    Where the network has split, each part takes the other's ranks for lost, and one part at most is as large. Local,
    with the same outcome on all of a part.
    """
    left, before = training.communicator.ranks, [rank for rank, _ in training.members]
    if 2 * len(left) > len(before) or (2 * len(left) == len(before) and left[0] == before[0]):
        return
    error = StuckError(
        f"the job ends: {len(left)} of {len(before)} ranks have lost the others, which may be behind a network that "
        f"has split, and at work. Only more than half of the ranks go on without the others, or half of them with rank "
        f"{before[0]}. The same command with --resume auto goes on from the last checkpoint."
    )
    error.everywhere = True
    raise error


def regrouped(training: Training, base: Base) -> Regrouped:
    """What those that are left go on with, taken over by nobody yet. Collective."""
    communicator, old = training.communicator, training.survival
    training.method.settle()
    old.take_what_arrived()
    reports = communicator.allgather(Report.of(old))
    counts = communicator.allgather(_counts(training))
    reasons = communicator.allgather(training.stop.reason)
    plan = planned(old.ranks, reports)
    if plan.loss is not None and not math.isfinite(plan.loss):
        error = DivergedError(f"the loss is no longer finite in round {plan.round + 1}, in which a rank was lost.")
        error.everywhere = True
        raise error
    spec = training.method.spec
    outer = Outer(*spec.outer(training.method.job.run))
    store = rebuilt(plan, reports, old, communicator, base, spec.synchronous, outer)
    survival = Survival(store, communicator, training.run.comm.buddies)
    sizes = shared_out(training.run, training.sizes, communicator)
    hosts, gossip = communicator.hosts(), training.stop.renewed()
    return Regrouped(plan, sizes, hosts, store, survival, gossip, reasons, counts)


def take(training: Training, made: Regrouped, began: float) -> list[Loss]:
    """Take over what was made; local."""
    plan, side = made.plan, training.size.side
    counts = position(plan, made.counts)
    training.sizes, training.size = made.sizes, made.sizes[side]
    training.hosts[:] = made.hosts  # who shows the run has this very list
    training.store, training.survival = made.store, made.survival
    training.stop.go_on(made.gossip, made.reasons)
    at = (counts.rounds if plan.round is None else plan.round) + 1
    training.go_on_from(counts)
    lost = [Loss(at, *training.members[rank], time.monotonic() - began) for rank in plan.lost]
    training.members = [training.members[rank] for rank in plan.left]
    training.losses += lost
    return lost


def position(plan: Plan, counted: Sequence[tuple[Counts, tuple[float, int, int]]]) -> Counts:
    """What is done after a loss: as somebody has counted it, or with what was done since."""
    most = max((counts for counts, _ in counted), key=lambda one: (one.rounds, one.local_step))
    if plan.round is None:
        return most
    done = (plan.round + 1, 0) if plan.complete else (plan.round, plan.steps)
    if (most.rounds, most.local_step) >= done:
        return most
    seconds, nbytes, examples = zip(*(since for _, since in counted))
    sums = most.examples + sum(examples), most.seconds + max(seconds), most.bytes + sum(nbytes)
    return Counts(*done, *sums, most.loss if plan.loss is None else plan.loss)


def _counts(training: Training) -> tuple[Counts, tuple[float, int, int]]:
    start, sent, examples = training.tally.began
    since = time.perf_counter() - start, training.communicator.traffic.bytes - sent, training.method.examples - examples
    return training.tally.counts, since
