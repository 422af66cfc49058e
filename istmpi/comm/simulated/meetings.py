"""Collective calls of a simulated job: everybody brings something, and leaves when there is what it needs.

As MPI allows it nobody waits for ranks of whom it needs nothing, and where a rank is gone some may be through while
others fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from istmpi.comm.simulated.network import Context, Cut, Network
from istmpi.comm.simulated.requests import ERR_PROC_FAILED, ERR_REVOKED, MPIError, Request
from istmpi.errors import SimulationError

Brought = dict[int, Any]
"""What each rank of the world brought that has come."""
Decide = Callable[[Brought, set[int]], Callable[[int], Any]]
"""Makes of what ranks brought, and of who is gone for them, what tells each rank's value, or error."""


@dataclass(eq=False)
class Visit:
    """One rank's part of a meeting."""

    request: Request
    missing: set[int]
    leave: Callable[[Brought], Any]
    leaving: bool = False


@dataclass(eq=False)
class Meeting:
    """One collective call of all its members."""

    name: str
    first: int
    key: Any
    members: int
    left: int = 0
    brought: Brought = field(default_factory=dict)
    visits: dict[int, Visit] = field(default_factory=dict)


class Meetings:
    """All collective calls of a job."""

    def __init__(self, network: Network):
        self._network = network
        self._open: dict[Any, Meeting] = {}
        self._counts: dict[Any, int] = {}
        network.on_cut.append(self._lose)

    def enter(
        self,
        context: Context,
        rank: int,
        name: str,
        brought: Any,
        needs: Iterable[int],
        leave: Callable[[Brought], Any],
        among: tuple[int, ...] = (),
    ) -> Request:
        """Begin a rank's next collective call; ``leave`` makes its value of what all brought, once its needs are there.

        ``name`` has whatever all must agree in; ``needs`` are ranks of the world. Calls ``among`` some alone are
        counted by themselves.
        """
        network, members = self._network, among or context.members
        mine = context.number, among, rank
        count = self._counts[mine] = self._counts.get(mine, 0) + 1
        key = context.number, among, count
        meeting = self._open.setdefault(key, Meeting(name, rank, key, len(members)))
        if meeting.name != name:
            told = f"rank {meeting.first} is in {meeting.name} where rank {rank} is in {name}"
            network.scheduler.end(
                SimulationError(f"{told}: call {count} of all ranks of communicator {context.number}")
            )
        request = Request(network, rank, name)
        if rank in context.revoked:
            request.finish(MPIError(ERR_REVOKED))
            return network.begun(request)
        here = {other for other in meeting.brought if not network.apart(rank, other)}
        visit = Visit(request, set(needs) - here - {rank}, leave)
        meeting.visits[rank], meeting.brought[rank] = visit, brought
        request.needs, request.context = lambda: set(visit.missing), context
        network.messages.update(messages=len(members) - 1)
        if visit.missing & network.known_dead[rank]:
            request.finish(MPIError(ERR_PROC_FAILED))
        for other in meeting.visits.values():
            if not network.apart(rank, other.request.rank):
                other.missing.discard(rank)
            if not (other.missing or other.leaving or other.request.done):
                other.leaving = True
                network.scheduler.after(network.weather.message(), self._leave, (meeting, other))
        return network.begun(request)

    def _leave(self, what: tuple[Meeting, Visit]) -> None:
        meeting, visit = what
        visit.leaving = False
        if not (visit.missing or visit.request.done or visit.request.rank in self._network.dead):
            try:
                visit.request.value = visit.leave(meeting.brought)
            except Exception as error:  # of what another rank brought: not of the rank that happens to run
                self._network.scheduler.end(error)
            visit.request.finish()
            meeting.left += 1
            if meeting.left == meeting.members:
                del self._open[meeting.key]

    def _lose(self, cut: Cut) -> None:
        for meeting in self._open.values():
            for rank, visit in meeting.visits.items():
                for other in meeting.visits:
                    if cut(other, rank) and not visit.request.done and self._network.weather.lost():
                        visit.missing.add(other)


@dataclass(eq=False)
class Agreement:
    """One agreement of those that are left of a communicator."""

    members: tuple[int, ...]
    brought: Brought = field(default_factory=dict)
    open: dict[int, tuple[Request, Decide]] = field(default_factory=dict)
    """Of those for whom nothing is decided yet; in parts of a split network it may be of another kind."""


class Agreements:
    """The calls of ULFM that go on without ranks that are gone, on revoked communicators, too."""

    def __init__(self, network: Network):
        self._network = network
        self._open: dict[Any, Agreement] = {}
        self._counts: dict[Any, int] = {}
        network.on_cut.append(self._later)

    def enter(self, context: Context, rank: int, name: str, brought: Any, decide: Decide) -> Request:
        """Begin an agreement."""
        network, mine = self._network, (context.number, rank)
        count = self._counts[mine] = self._counts.get(mine, 0) + 1
        agreement = self._open.setdefault((context.number, count), Agreement(context.members))
        request = Request(network, rank, name)
        agreement.open[rank] = request, decide
        agreement.brought[rank] = brought
        request.needs = lambda: set(context.members) - agreement.brought.keys() - network.gone(rank)
        network.messages.update(messages=len(context.members) - 1)
        # What `_notice` would let fail are other calls: here a rank that is gone is never needed.
        self._look(agreement)
        return network.begun(request)

    def _look(self, agreement: Agreement) -> None:
        network = self._network
        for rank, (_, decide) in list(agreement.open.items()):
            gone = network.gone(rank)
            here = {other: its for other, its in agreement.brought.items() if not network.apart(rank, other)}
            if rank in agreement.open and set(agreement.members) <= here.keys() | gone:
                outcome = decide(here, gone)
                for request, _ in [agreement.open.pop(other) for other in here if other in agreement.open]:
                    network.scheduler.after(network.weather.message(), self._leave, (request, outcome))

    def _leave(self, what: tuple[Request, Callable[[int], Any]]) -> None:
        request, outcome = what
        if request.rank not in self._network.dead:
            try:
                request.value = outcome(request.rank)
            except MPIError as error:
                request.finish(error)
            else:
                request.finish()

    def _later(self, _: Cut) -> None:
        for agreement in self._open.values():
            self._network.scheduler.after(self._network.weather.noticing(), self._look, agreement)
