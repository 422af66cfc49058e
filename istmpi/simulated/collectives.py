"""Collective calls of a simulated job.

A rank brings a value, and leaves once all values that it needs are there.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from istmpi.errors import SimulationError
from istmpi.simulated.network import Context, Network, Operation

Brought = dict[int, Any]


@dataclass(eq=False)
class Entry:
    """A rank's part in a collective call."""

    request: Operation
    missing: set[int]
    leave: Callable[[Brought], Any]
    leaving: bool = False


@dataclass(eq=False)
class Collective:
    name: str
    first: int
    """The rank that began the call first."""
    members: int
    left: int = 0
    brought: Brought = field(default_factory=dict)
    entries: dict[int, Entry] = field(default_factory=dict)


class Collectives:
    def __init__(self, network: Network):
        self._network = network
        self._open: dict[Any, Collective] = {}
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
    ) -> Operation:
        """Begin a rank's next collective call, which ends once the ranks ``needs`` have begun it.

        ``leave`` then makes the result. All ranks must give the same ``name``; otherwise
        SimulationError ends the job. ``among``: the ranks that make the call, by default all.
        """
        members = len(among or context.members)
        count = self._count_call(context, among, rank)
        key = (context.number, among, count)
        collective = self._open.setdefault(key, Collective(name, rank, members))
        if collective.name != name:
            self._refuse(collective, rank, name, count, context)
        request = Operation(self._network, rank, name)
        missing = set(needs) - collective.brought.keys() - {rank}
        entry = Entry(request, missing, leave)
        collective.entries[rank] = entry
        collective.brought[rank] = brought
        request.needs = lambda: set(entry.missing)
        self._network.messages.update(messages=members - 1)
        self._let_leave(key, collective, rank)
        return self._network.begin(request)

    def _count_call(self, context: Context, among: tuple[int, ...], rank: int) -> int:
        """Count a rank's calls: MPI matches the n-th calls of all ranks with each other."""
        caller = (context.number, among, rank)
        count = self._counts.get(caller, 0) + 1
        self._counts[caller] = count
        return count

    def _refuse(
        self, collective: Collective, rank: int, name: str, count: int, context: Context
    ) -> None:
        message = (
            f"rank {collective.first} is in {collective.name} where rank {rank} is in {name}: "
            f"call {count} of all ranks of communicator {context.number}"
        )
        self._network.scheduler.end(SimulationError(message))

    def _let_leave(self, key: Any, collective: Collective, arrived: int) -> None:
        """Schedule the ends of the ranks that waited for the arrived rank alone."""
        network = self._network
        for entry in collective.entries.values():
            entry.missing.discard(arrived)
            if not (entry.missing or entry.leaving or entry.request.done):
                entry.leaving = True
                seconds = network.timing.message_seconds()
                network.scheduler.after(seconds, self._leave, (key, collective, entry))

    def _leave(self, event: tuple[Any, Collective, Entry]) -> None:
        """End a rank's part in a call, unless a kill has taken a value away meanwhile."""
        key, collective, entry = event
        entry.leaving = False
        # A kill may have taken a value away again since the end was scheduled.
        if entry.missing or entry.request.rank in self._network.dead:
            return
        try:
            entry.request.value = entry.leave(collective.brought)
        except Exception as error:  # another rank's values caused it, not the rank that runs now
            self._network.scheduler.end(error)
        entry.request.finish()
        collective.left += 1
        if collective.left == collective.members:
            del self._open[key]

    def _lose(self, killed: int) -> None:
        """Lose what a killed rank brought, at random for each rank that has not left."""
        for collective in self._open.values():
            if killed not in collective.entries:
                continue
            for rank, entry in collective.entries.items():
                # The draw comes last: it happens only for ranks that can lose something.
                if rank != killed and not entry.request.done and self._network.timing.is_lost():
                    entry.missing.add(killed)
