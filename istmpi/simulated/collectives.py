"""Collective calls of a simulated job: a rank brings a value, and leaves once all values that it
needs are there."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from istmpi.errors import SimulationError
from istmpi.simulated.network import Context, Network, Request

Brought = dict[int, Any]


@dataclass(eq=False)
class Entry:
    request: Request
    missing: set[int]
    leave: Callable[[Brought], Any]
    leaving: bool = False


@dataclass(eq=False)
class Collective:
    name: str
    first: int
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
    ) -> Request:
        """Begin a rank's next collective call; once the ranks ``needs`` have begun it, ``leave``
        makes the result.

        All ranks must give the same ``name``; otherwise SimulationError ends the job. ``among``:
        the ranks that make the call, by default all.
        """
        network, members = self._network, among or context.members
        caller = context.number, among, rank
        count = self._counts[caller] = self._counts.get(caller, 0) + 1
        key = context.number, among, count
        collective = self._open.setdefault(key, Collective(name, rank, len(members)))
        if collective.name != name:
            differ = (
                f"rank {collective.first} is in {collective.name} where rank {rank} is in {name}"
            )
            network.scheduler.end(
                SimulationError(
                    f"{differ}: call {count} of all ranks of communicator {context.number}"
                )
            )
        request = Request(network, rank, name)
        entry = Entry(request, set(needs) - collective.brought.keys() - {rank}, leave)
        collective.entries[rank], collective.brought[rank] = entry, brought
        request.needs = lambda: set(entry.missing)
        network.messages.update(messages=len(members) - 1)
        for other in collective.entries.values():
            other.missing.discard(rank)
            if not (other.missing or other.leaving or other.request.done):
                other.leaving = True
                network.scheduler.after(
                    network.timing.message(), self._leave, (key, collective, other)
                )
        return network.begun(request)

    def _leave(self, what: tuple[Any, Collective, Entry]) -> None:
        key, collective, entry = what
        entry.leaving = False
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
        for collective in self._open.values():
            for rank, entry in collective.entries.items():
                if (
                    killed in collective.entries
                    and rank != killed
                    and not entry.request.done
                    and self._network.timing.lost()
                ):
                    entry.missing.add(killed)
