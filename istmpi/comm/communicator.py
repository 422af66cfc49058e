"""A group of ranks: MPI's calls as the engine uses them, counted.

Values travel as bytes, so that every dtype arrives as it left. Each call adds to `Traffic` the bytes that this rank
hands to MPI for other ranks; what it keeps for itself does not count.
"""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from istmpi.errors import IstmpiError
from istmpi.foreign import past_a_limit

T = TypeVar("T")

STAGING_BYTES = 2**27
"""Most bytes that a rank packs for one Alltoallv. It bounds the memory beside the weights, and keeps counts and
displacements far below the 2**31 that MPI libraries before MPI-4 can take."""

LARGEST_CALL = 2**30
"""Bytes that one broadcast or all-gather moves at most, for the same reason."""

SPIN_POLLS = 20
"""So many polls in vain before the first sleep."""
LONGEST_SLEEP = 5e-4
"""Seconds; a line of 1 Gbit/s carries 62 kB meanwhile, which its socket buffers hold."""

Staged = tuple[np.ndarray, list[int], list[int]]
"""A byte buffer with the count and the start of each rank's message in it."""


@dataclass(frozen=True)
class Sent:
    """One call that hands values to MPI; times are those of ``time.perf_counter``."""

    call: str
    bytes: int
    began: float
    ended: float


@dataclass
class Traffic:
    """What this rank handed to MPI."""

    bytes: int = 0
    calls: int = 0
    followers: list[Callable[[Sent], None]] = field(default_factory=list)
    """Each is told of every call."""

    def add(self, nbytes: int, call: str, began: float, ended: float | None = None) -> None:
        """Count a call that has ended, by default just now."""
        self.bytes += nbytes
        self.calls += 1
        for follower in self.followers:
            follower(Sent(call, nbytes, began, ended or time.perf_counter()))


class Backoff:
    """Waits for the network with sleeps that grow while nothing happens.

    MPI libraries wait by spinning: a rank that waits would take the core from one that shares it and still computes.
    """

    def __init__(self) -> None:
        self._idle = 0

    def wait_unless(self, progress: bool) -> None:
        """Sleep a little longer after every poll without progress; not at all after one that made some."""
        self._idle = 0 if progress else self._idle + 1
        if self._idle > SPIN_POLLS:
            doublings = min(self._idle - SPIN_POLLS, 20)
            time.sleep(min(2**doublings * 25e-6, LONGEST_SLEEP))


class Communicator:
    """A group of ranks. Methods are collective, but those for scratch memory and those that name a peer or requests."""

    def __init__(self, mpi_communicator: Any):
        self._mpi = mpi_communicator
        self.rank: int = mpi_communicator.Get_rank()
        self.size: int = mpi_communicator.Get_size()
        self.traffic = Traffic()
        self._scratch: dict[str, np.ndarray] = {}

    def scratch(self, name: str, nbytes: int) -> np.ndarray:
        """A reused byte buffer: fresh memory for every transfer would cost a page fault for every 4 KiB."""
        buffer = self._scratch.get(name)
        if buffer is None or buffer.nbytes < nbytes:
            self._scratch.pop(name, None)
            buffer = self._scratch[name] = np.empty(nbytes, dtype=np.uint8)
        return buffer

    def release_scratch(self) -> None:
        """Give back the memory of `scratch`; who asks for it again gets fresh memory."""
        self._scratch.clear()

    def alltoallv(self, send: Staged, receive: Staged) -> None:
        """Every rank's message to every other, as bytes."""
        from mpi4py import MPI

        began = time.perf_counter()
        self._mpi.Alltoallv([*send, MPI.BYTE], [*receive, MPI.BYTE])
        self.traffic.add(sum(send[1]) - send[1][self.rank], "alltoallv", began)

    def allgatherv(self, mine: np.ndarray, counts: list[int]) -> np.ndarray:
        """All ranks' flat arrays one after the other: rank r's has ``counts[r]`` elements; any dtype."""
        from mpi4py import MPI

        parts = [count * mine.dtype.itemsize for count in counts]
        starts = [sum(parts[:rank]) for rank in range(self.size)]
        result = np.empty(sum(counts), dtype=mine.dtype)
        own, per_rank = np.ascontiguousarray(mine).view(np.uint8), result.view(np.uint8)
        if per_rank.nbytes <= LARGEST_CALL:
            began = time.perf_counter()
            self._mpi.Allgatherv([own, MPI.BYTE], [per_rank, parts, starts, MPI.BYTE])
            self.traffic.add(own.nbytes * (self.size - 1), "allgatherv", began)
        else:
            per_rank[starts[self.rank] :][: own.nbytes] = own
            for rank, (start, nbytes) in enumerate(zip(starts, parts, strict=True)):
                self.broadcast(per_rank[start : start + nbytes], rank)
        return result

    def broadcast(self, values: np.ndarray, root: int) -> None:
        """Overwrite ``values`` (contiguous) by the root's, in place."""
        from mpi4py import MPI

        flat, began = values.reshape(-1).view(np.uint8), time.perf_counter()
        for start in range(0, flat.nbytes, LARGEST_CALL):
            self._mpi.Bcast([flat[start : start + LARGEST_CALL], MPI.BYTE], root=root)
        if self.rank == root:
            self.traffic.add(values.nbytes * (self.size - 1), "broadcast", began)

    def exchange(self, peer: int, mine: np.ndarray, theirs: np.ndarray) -> None:
        """Send ``mine`` to a rank, receive as much from it; both contiguous. Each rank of a pair names the other."""
        from mpi4py import MPI

        began = time.perf_counter()
        self._mpi.Sendrecv(
            [mine.view(np.uint8), MPI.BYTE], peer, recvbuf=[theirs.view(np.uint8), MPI.BYTE], source=peer
        )
        self.traffic.add(mine.nbytes, "sendrecv", began)

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        """The sum over ranks, added in rank order so that two runs agree bit for bit."""
        gathered = self.allgatherv(values.ravel(), [values.size] * self.size)
        return gathered.reshape(self.size, *values.shape).sum(axis=0)

    def allreduce_max(self, value: int) -> int:
        return max(self.allgather(value))

    def allgather(self, value: T) -> list[T]:
        """Every rank's value, on every rank: for small Python objects."""
        return self._mpi.allgather(value)

    def gather_to_root(self, value: T) -> list[T] | None:
        """Every rank's value on rank 0, None on the others."""
        return self._mpi.gather(value, root=0)

    def broadcast_from_root(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        return self._mpi.bcast(value, root=0)

    def barrier(self) -> None:
        self._mpi.Barrier()

    def idle_barrier(self) -> None:
        """A barrier for ranks that may come long after each other."""
        everybody, backoff = self._mpi.Ibarrier(), Backoff()
        while not everybody.Test():
            backoff.wait_unless(False)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Local work that every rank must get through: if one fails, all raise the lowest failing rank's error.

        The message names that rank if other ranks got through. Only errors meant for the user are agreed on, and want
        of memory, which becomes one of them; any other ends the job at once.
        """
        error: IstmpiError | None = None
        try:
            yield
        except IstmpiError as raised:
            error = raised
        except Exception as raised:
            error = past_a_limit(raised)
            if error is None:
                raise
        by_rank = self.allgather(error)
        failed = [rank for rank, error in enumerate(by_rank) if error is not None]
        if failed:
            first = by_rank[failed[0]]
            if len(failed) < self.size:
                first.args = (f"rank {failed[0]}: {first}",)
            first.everywhere = True
            raise first

    @property
    def mpi(self) -> Any:
        """The mpi4py communicator, for a library that takes one."""
        return self._mpi

    def duplicate(self) -> "Communicator":
        """The same ranks on a communicator of their own: what goes on there mixes with nothing here."""
        return Communicator(self._mpi.Dup())

    @contextmanager
    def among(self, ranks: Sequence[int]) -> Iterator["Communicator | None"]:
        """A communicator of these ranks alone, in this order, None on the others; its traffic counts here, too."""
        if self.rank not in ranks:
            yield None
            return
        group = self._mpi.Get_group().Incl(ranks)
        some = Communicator(self._mpi.Create_group(group))
        some.traffic.followers = self.traffic.followers
        yield some
        self.traffic.bytes += some.traffic.bytes
        self.traffic.calls += some.traffic.calls
        some.mpi.Free()
        group.Free()

    def start_allreduce_max(self, value: int) -> Callable[[], int]:
        """Begin to agree on the largest of all ranks' values; what it returns waits for it and tells."""
        from mpi4py import MPI

        result = np.array([value], dtype=np.int64)
        request = self._mpi.Iallreduce(MPI.IN_PLACE, result, op=MPI.MAX)

        def largest() -> int:
            request.Wait()
            return int(result[0])

        return largest

    def start_send(self, values: np.ndarray, peer: int, tag: int) -> Any:
        """Begin to send bytes, not to be touched until the request is `all_done`; not counted."""
        from mpi4py import MPI

        return self._mpi.Isend([values, MPI.BYTE], peer, tag)

    def start_receive(self, values: np.ndarray, peer: int, tag: int) -> Any:
        """Begin to receive bytes, which have arrived once the request is `all_done`."""
        from mpi4py import MPI

        return self._mpi.Irecv([values, MPI.BYTE], peer, tag)

    @staticmethod
    def test_some(requests: list[Any]) -> bool:
        """One call of MPI_Testsome for all these requests, sent and received: whether any was done."""
        from mpi4py import MPI

        return bool(MPI.Request.Testsome(requests))

    @staticmethod
    def all_done(requests: Sequence[Any]) -> bool:
        """Whether all of them were done at the last `test_some`."""
        from mpi4py import MPI

        return all(request == MPI.REQUEST_NULL for request in requests)

    @contextmanager
    def on_this_host(self) -> Iterator["Communicator"]:
        """The ranks on this host, for as long as the block lasts. Entering and leaving it are collective."""
        from mpi4py import MPI

        local = Communicator(self._mpi.Split_type(MPI.COMM_TYPE_SHARED))
        yield local
        local.mpi.Free()

    def hosts(self) -> list[str]:
        """Every rank's host name."""
        return self.allgather(socket.gethostname())
