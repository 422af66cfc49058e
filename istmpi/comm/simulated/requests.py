"""What MPI hands out beside communicators: requests, statuses, groups and errors, by mpi4py's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from istmpi.comm.simulated.network import Network

ERR_TRUNCATE, ERR_OTHER, ERR_IN_STATUS, ERR_PENDING = 15, 16, 18, 19
ERR_PROC_ABORTED, ERR_PROC_FAILED, ERR_PROC_FAILED_PENDING, ERR_REVOKED = 74, 75, 76, 77

ANY_SOURCE, ANY_TAG, PROC_NULL = -1, -1, -2

_WORDS = {
    ERR_TRUNCATE: "MPI_ERR_TRUNCATE: message truncated",
    ERR_OTHER: "MPI_ERR_OTHER: known error not in list",
    ERR_IN_STATUS: "MPI_ERR_IN_STATUS: error code in status",
    ERR_PROC_FAILED: "MPI_ERR_PROC_FAILED: Process Failure",
    ERR_PROC_FAILED_PENDING: "MPI_ERR_PROC_FAILED_PENDING: Process Failure during an MPI_ANY_SOURCE request",
    ERR_REVOKED: "MPI_ERR_REVOKED: Communication Object Revoked",
}


class MPIError(RuntimeError):
    """mpi4py's ``MPI.Exception``."""

    def __init__(self, error_class: int = ERR_OTHER):
        super().__init__(_WORDS[error_class])
        self.error_class = self.error_code = error_class

    def Get_error_class(self) -> int:
        return self.error_class

    def Get_error_code(self) -> int:
        return self.error_code

    def Get_error_string(self) -> str:
        return _WORDS[self.error_class]


class Status:
    """From whom a message is."""

    def __init__(self) -> None:
        self.source = self.tag = -1
        self.count = self.error = 0

    def Get_source(self) -> int:
        return self.source

    def Get_tag(self) -> int:
        return self.tag

    def Get_error(self) -> int:
        return self.error

    def take(self, source: int, tag: int, count: int) -> None:
        """Tell of a message."""
        self.source, self.tag, self.count = source, tag, count


class Request:
    """An operation that was begun by a rank."""

    def __init__(self, network: Network | None = None, rank: int = -1, words: str = ""):
        self.network, self.rank, self.words = network, rank, words
        self.done = self.null = network is None
        self.error: MPIError | None = None
        self.value: Any = None
        """What arrived, of a call for Python objects."""
        self.needs: Callable[[], set[int]] = set
        """The ranks of the world without which it cannot end, as it is now."""
        self.status = Status()
        self.context: Any = None
        """The communicator with whose revocation it fails."""
        self.on_taking: Callable[[Request], None] = lambda request: None
        """Puts status and value as its rank knows them."""
        self.undo: Callable[[], None] = lambda: None
        """Takes it back where it has not ended."""

    def finish(self, error: MPIError | None = None) -> None:
        """Have it ended, with an error or without; a second time does nothing."""
        if not self.done:
            self.done, self.error = True, error
            self.network.ended(self)

    def _taken(self, status: Status | None) -> None:
        self.null = True
        self.on_taking(self)
        if status is not None:
            status.take(self.status.source, self.status.tag, self.status.count)
        if self.error:
            raise self.error

    def Test(self, status: Status | None = None) -> bool:
        if self.null:
            return True
        self.network.poll(self.rank, "Test")
        if self.done:
            self._taken(status)
        return self.null

    def Get_status(self, status: Status | None = None) -> bool:
        if not self.null:
            self.network.poll(self.rank, "Get_status")
        return self.null or self.done

    def Wait(self, status: Status | None = None) -> bool:
        if not self.null:
            self.network.call(self.rank, "Wait")
            self.network.wait(self)
            self._taken(status)
        return True

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        return (True, self.value) if self.Test(status) else (False, None)

    def wait(self, status: Status | None = None) -> Any:
        self.Wait(status)
        return self.value

    def Cancel(self) -> None:
        if not self.done:
            self.undo()
            self.finish()

    cancel = Cancel

    def Free(self) -> None:
        self.null = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and (self is other or (self.null and other.null))

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        return not self.null

    # ---- for several

    @classmethod
    def Testsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        active = [number for number, request in enumerate(requests) if not request.null]
        if not active:
            return None
        requests[active[0]].network.poll(requests[active[0]].rank, "Testsome")
        done = [number for number in active if requests[number].done]
        _take([requests[number] for number in done])
        return done

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        active = [request for request in requests if not request.null]
        if not active:
            return True
        active[0].network.poll(active[0].rank, "Testall")
        if not all(request.done for request in active):
            return False
        _take(active)
        return True

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        active = [request for request in requests if not request.null]
        if active:
            active[0].network.call(active[0].rank, "Waitall")
            for request in active:
                request.network.wait(request)
            _take(active)
        return True

    @classmethod
    def waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[Any]:
        cls.Waitall(requests)
        return [request.value for request in requests]


def _take(done: Sequence[Request]) -> None:
    for request in done:
        request.null = True
        request.on_taking(request)
    if any(request.error for request in done):
        raise MPIError(ERR_IN_STATUS)


class Group:
    """Some ranks of the world, in an order."""

    def __init__(self, members: Sequence[int], mine: int):
        self.members, self._mine = tuple(members), mine

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def rank(self) -> int:
        return self.members.index(self._mine) if self._mine in self.members else -32766

    def Get_size(self) -> int:
        return self.size

    def Get_rank(self) -> int:
        return self.rank

    def Incl(self, ranks: Sequence[int]) -> Group:
        return Group([self.members[rank] for rank in ranks], self._mine)

    def Excl(self, ranks: Sequence[int]) -> Group:
        return Group([member for rank, member in enumerate(self.members) if rank not in ranks], self._mine)

    def Difference(self, *groups: Group) -> Group:
        """Those of the first that are not in the second; mpi4py takes both, as a method of either."""
        first, second = groups if len(groups) == 2 else (self, *groups)
        return Group([member for member in first.members if member not in second.members], self._mine)

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        """The same ranks' numbers in another group, -32766 for who is not in it."""
        those = [self.members[rank] for rank in (range(self.size) if ranks is None else ranks)]
        return [group.members.index(member) if member in group.members else -32766 for member in those]

    def Free(self) -> None:
        """Nothing to give back."""
