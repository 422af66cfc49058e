"""Collective calls of a simulated job: every rank brings something, and leaves once there is what it needs.

As MPI allows it, no rank waits for others of whom it needs nothing; so where a rank is gone some may be through while
others never are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from istmpi.errors import SimulationError
from istmpi.simulated.network import Context, Network
from istmpi.simulated.requests import Request

Brought = dict[int, Any]
"""The contribution of each rank of the world that has come."""


@dataclass(eq=False)
class Visit:
    """The part of one rank in a meeting."""

    request: Request
    missing: set[int]
    leave: Callable[[Brought], Any]
    leaving: bool = False


@dataclass(eq=False)
class Meeting:
    """A collective call of all its members."""

    name: str
    first: int
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
        network.on_kill.append(self._lose)

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

        ``name`` has all in which ranks must agree; ``needs`` are ranks of the world. Calls ``among`` some ranks alone
        are counted by themselves.
        """
        network, members = self._network, among or context.members
        visitor = context.number, among, rank
        count = self._counts[visitor] = self._counts.get(visitor, 0) + 1
        key = context.number, among, count
        meeting = self._open.setdefault(key, Meeting(name, rank, len(members)))
        if meeting.name != name:
            differ = f"rank {meeting.first} is in {meeting.name} where rank {rank} is in {name}"
            network.scheduler.end(
                SimulationError(f"{differ}: call {count} of all ranks of communicator {context.number}")
            )
        request = Request(network, rank, name)
        visit = Visit(request, set(needs) - meeting.brought.keys() - {rank}, leave)
        meeting.visits[rank], meeting.brought[rank] = visit, brought
        request.needs = lambda: set(visit.missing)
        network.messages.update(messages=len(members) - 1)
        for other in meeting.visits.values():
            other.missing.discard(rank)
            if not (other.missing or other.leaving or other.request.done):
                other.leaving = True
                network.scheduler.after(network.weather.message(), self._leave, (key, meeting, other))
        return network.begun(request)

    def _leave(self, what: tuple[Any, Meeting, Visit]) -> None:
        key, meeting, visit = what
        visit.leaving = False
        if visit.missing or visit.request.rank in self._network.dead:
            return
        try:
            visit.request.value = visit.leave(meeting.brought)
        except Exception as error:  # of what another rank brought: not of the rank that happens to run
            self._network.scheduler.end(error)
        visit.request.finish()
        meeting.left += 1
        if meeting.left == meeting.members:
            del self._open[key]

    def _lose(self, killed: int) -> None:
        """Lose at random what a killed rank brought, for each rank that has not left yet."""
        for meeting in self._open.values():
            for rank, visit in meeting.visits.items():
                if (
                    killed in meeting.visits
                    and rank != killed
                    and not visit.request.done
                    and self._network.weather.lost()
                ):
                    visit.missing.add(killed)
