"""Requests, statuses and groups of the simulated MPI, by mpi4py's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from istmpi.simulated.network import Network

ANY_SOURCE, ANY_TAG = -1, -1


class Status:
    def __init__(self) -> None:
        self.source = self.tag = -1

    def take(self, source: int, tag: int) -> None:
        self.source, self.tag = source, tag


class Request:
    """An operation that a rank has begun; without a network the null request."""

    def __init__(self, network: Network | None = None, rank: int = -1, words: str = ""):
        self.network, self.rank, self.words = network, rank, words
        self.done = self.null = network is None
        self.value: Any = None
        self.needs: Callable[[], set[int]] = set
        """The ranks of the world without which it cannot end, as it is now."""
        self.status = Status()
        self.on_taking: Callable[[Request], None] = lambda request: None
        self.undo: Callable[[], None] = lambda: None

    def finish(self) -> None:
        if not self.done:
            self.done = True
            self.network.ended(self)

    def take(self) -> None:
        self.null = True
        self.on_taking(self)

    def Test(self) -> bool:
        if not self.null:
            self.network.poll(self.rank, "Test")
            if self.done:
                self.take()
        return self.null

    def wait(self) -> Any:
        if not self.null:
            self.network.call(self.rank, "Wait")
            self.network.wait(self)
            self.take()
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and (self is other or (self.null and other.null))

    def __hash__(self) -> int:
        return id(self)

    @staticmethod
    def Testsome(requests: Sequence[Request]) -> list[int] | None:
        active = [number for number, request in enumerate(requests) if not request.null]
        if not active:
            return None
        requests[active[0]].network.poll(requests[active[0]].rank, "Testsome")
        done = [number for number in active if requests[number].done]
        for number in done:
            requests[number].take()
        return done


class Group:
    """Some ranks of the world, in an order."""

    def __init__(self, members: Sequence[int]):
        self.members = tuple(members)

    def Incl(self, ranks: Sequence[int]) -> Group:
        return Group([self.members[rank] for rank in ranks])

    def Translate_ranks(self, ranks: Sequence[int], group: Group) -> list[int]:
        return [group.members.index(self.members[rank]) for rank in ranks]

    def Free(self) -> None:
        """Do nothing: there is nothing to give back."""
