"""A group of ranks: MPI's calls as the engine uses them, counted.

Values travel as bytes, so that every dtype arrives as it left. Each call adds to `Traffic` the bytes that this rank
hands to MPI for other ranks; what it keeps for itself does not count.

No call blocks in MPI: it is begun, and asked for until it is done, with pauses that leave the core to ranks that share
it; `Whereabouts` knows meanwhile for whom it waits.
"""

import pickle
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from istmpi.comm import mpi, objects
from istmpi.comm.backoff import Backoff
from istmpi.comm.exchange import Exchange
from istmpi.comm.traffic import Traffic
from istmpi.comm.whereabouts import Whereabouts
from istmpi.errors import IstmpiError
from istmpi.foreign import past_a_limit

T = TypeVar("T")

STAGING_BYTES = 2**27
"""Most bytes that a rank packs for one exchange. It bounds the memory beside the weights, and keeps counts and
displacements far below the 2**31 that MPI libraries before MPI-4 can take."""

LARGEST_CALL = 2**30
"""Bytes that one broadcast or all-gather moves at most, for the same reason."""

Staged = tuple[np.ndarray, list[int], list[int]]
"""A byte buffer with the count and the start of each rank's message in it."""


class Communicator:
    """A group of ranks. Methods are collective, but those for scratch memory and those that name a peer or requests."""

    def __init__(
        self,
        mpi_communicator: Any,
        name: str = "all",
        ranks: Sequence[int] | None = None,
        whereabouts: Whereabouts | None = None,
    ):
        """``ranks``: their numbers in the job, by default all; ``name``: the same on all of them, no other's."""
        self._mpi = mpi_communicator
        self.rank: int = mpi_communicator.Get_rank()
        self.size: int = mpi_communicator.Get_size()
        self.ranks = tuple(range(self.size) if ranks is None else ranks)
        self.whereabouts = whereabouts or Whereabouts()
        self.traffic = Traffic()
        self._name, self._duplicates = name, 0
        self._scratch: dict[str, np.ndarray] = {}
        self._hosts: int | None = None
        """On so many the ranks are; known from the first exchange on."""

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
        """Every rank's message to every other, as bytes: in pieces between hosts, else by MPI_Alltoallv."""
        MPI = mpi.library_here()

        if self._hosts is None:
            self._hosts = len({*self.hosts()})
        began = time.perf_counter()
        if self._hosts == 1:  # one copy from memory to memory, which pieces would only delay
            request = self._mpi.Ialltoallv([*send, MPI.BYTE], [*receive, MPI.BYTE])
            self._finish(request, "alltoallv", send, receive)
        else:
            self.meet()
            exchange = Exchange(self, send, receive)
            with self.waiting("exchange"):
                backoff = Backoff()
                while not exchange.done:
                    backoff.wait_unless(exchange.advance())
        self.traffic.add(sum(send[1]) - send[1][self.rank], "alltoallv", began)

    def allgatherv(self, mine: np.ndarray, counts: list[int]) -> np.ndarray:
        """All ranks' flat arrays one after the other: rank r's has ``counts[r]`` elements; any dtype."""
        MPI = mpi.library_here()

        parts = [count * mine.dtype.itemsize for count in counts]
        starts = [sum(parts[:rank]) for rank in range(self.size)]
        result = np.empty(sum(counts), dtype=mine.dtype)
        own, per_rank = np.ascontiguousarray(mine).view(np.uint8), result.view(np.uint8)
        if per_rank.nbytes <= LARGEST_CALL:
            began = time.perf_counter()
            request = self._mpi.Iallgatherv([own, MPI.BYTE], [per_rank, parts, starts, MPI.BYTE])
            self._finish(request, "allgatherv", own, per_rank)
            self.traffic.add(own.nbytes * (self.size - 1), "allgatherv", began)
        else:
            per_rank[starts[self.rank] :][: own.nbytes] = own
            for rank, (start, nbytes) in enumerate(zip(starts, parts, strict=True)):
                self.broadcast(per_rank[start : start + nbytes], rank)
        return result

    def broadcast(self, values: np.ndarray, root: int) -> None:
        """Overwrite ``values`` (contiguous) by the root's, in place."""
        MPI = mpi.library_here()

        flat, began = values.reshape(-1).view(np.uint8), time.perf_counter()
        for start in range(0, flat.nbytes, LARGEST_CALL):
            piece = flat[start : start + LARGEST_CALL]
            self._finish(self._mpi.Ibcast([piece, MPI.BYTE], root=root), "broadcast", piece)
        if self.rank == root:
            self.traffic.add(values.nbytes * (self.size - 1), "broadcast", began)

    def exchange(self, peer: int, mine: np.ndarray, theirs: np.ndarray) -> None:
        """Send ``mine`` to a rank, receive as much from it; both contiguous. Each rank of a pair names the other."""
        MPI = mpi.library_here()

        began = time.perf_counter()
        requests = [
            self._mpi.Irecv([theirs.view(np.uint8), MPI.BYTE], peer),
            self._mpi.Isend([mine.view(np.uint8), MPI.BYTE], peer),
        ]

        def done() -> bool:
            self.test_some(requests)
            return self.all_done(requests)

        self._wait(done, "sendrecv", [self.ranks[peer]], memory=(mine, theirs))
        self.traffic.add(mine.nbytes, "sendrecv", began)

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        """The sum over ranks, added in rank order so that two runs agree bit for bit."""
        gathered = self.allgatherv(values.ravel(), [values.size] * self.size)
        return gathered.reshape(self.size, *values.shape).sum(axis=0)

    def allreduce_max(self, value: int) -> int:
        return max(self.allgather(value))

    def allgather(self, value: T) -> list[T]:
        """Every rank's value, on every rank: for small Python objects."""
        MPI = mpi.library_here()

        packed, size = objects.packed(value), objects.SLOT
        while True:
            mine, slots = objects.slot(packed, size), bytearray(self.size * size)
            self._finish(self._mpi.Iallgather([mine, MPI.BYTE], [slots, MPI.BYTE]), "allgather", mine, slots)
            if (needed := objects.needed(slots, size)) <= size:
                return objects.unpacked(slots, size)
            size = needed

    def gather_to_root(self, value: T) -> list[T] | None:
        """Every rank's value on rank 0, None on the others."""
        MPI = mpi.library_here()

        first = self.rank == 0
        packed = np.frombuffer(objects.packed(value), dtype=np.uint8)
        lengths = np.zeros(self.size if first else 0, dtype=np.int64)
        mine = np.array([packed.size], dtype=np.int64)
        self._finish(self._mpi.Igather(mine, lengths if first else None), "gather", mine, lengths)
        lengths = lengths.tolist()
        starts = [*accumulate(lengths, initial=0)][:-1]
        whole = np.empty(sum(lengths), dtype=np.uint8)
        target = [whole, lengths, starts, MPI.BYTE] if first else None
        self._finish(self._mpi.Igatherv([packed, MPI.BYTE], target), "gather", packed, whole)
        if not first:
            return None
        return [pickle.loads(whole[start : start + length]) for start, length in zip(starts, lengths, strict=True)]

    def broadcast_from_root(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        MPI = mpi.library_here()

        packed, size = objects.packed(value) if self.rank == 0 else b"", objects.SLOT
        while True:
            slot = bytearray(objects.slot(packed, size))
            self._finish(self._mpi.Ibcast([slot, MPI.BYTE]), "broadcast", slot)
            if (needed := objects.needed(slot, size)) <= size:
                return objects.unpacked(slot, size)[0]
            size = needed

    def barrier(self) -> None:
        """Until all ranks have come."""
        self._finish(self._mpi.Ibarrier(), "barrier")

    def _finish(self, request: Any, call: str, *memory: object) -> None:
        self.meet()
        self._wait(request.Test, call, memory=memory)

    def _wait(self, done: Callable[[], bool], call: str, peers: Sequence[int] = (), memory: object = ()) -> None:
        """Until it is done; ``peers``: whom it takes, by default all; ``memory``: what it reads and writes."""
        if not done():
            with self.waiting(call, peers):
                backoff = Backoff()
                while not done():
                    backoff.wait_unless(False)

    def waiting(self, call: str, peers: Sequence[int] = ()) -> AbstractContextManager[None]:
        """A block in which this rank waits; ``peers``: for whom, by their numbers in the job, else for all."""
        return self.whereabouts.waits(call, self._name, peers or self.ranks, not peers)

    def waiting_for_itself(self, call: str) -> AbstractContextManager[None]:
        """A block in which this rank waits for what it does itself; all ranks come to it, as to a collective call."""
        self.whereabouts.meet(f"{self._name} {call}")
        return self.whereabouts.waits(call, f"{self._name} {call}", self.ranks, True, own=True)

    def meet(self) -> None:
        """Say that this rank has come to a collective call."""
        self.whereabouts.meet(self._name)

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
        self._duplicates += 1
        return Communicator(self._mpi.Dup(), f"{self._name}.{self._duplicates}", self.ranks, self.whereabouts)

    @contextmanager
    def among(self, ranks: Sequence[int]) -> Iterator["Communicator | None"]:
        """A communicator of these ranks alone, in this order, None on the others; its traffic counts here, too."""
        if self.rank not in ranks:
            yield None
            return
        group = self._mpi.Get_group().Incl(ranks)
        in_job = [self.ranks[rank] for rank in ranks]
        some = Communicator(self._mpi.Create_group(group), f"{self._name}:{in_job}", in_job, self.whereabouts)
        some.traffic.followers = self.traffic.followers
        yield some
        self.traffic.bytes += some.traffic.bytes
        self.traffic.calls += some.traffic.calls
        some.mpi.Free()
        group.Free()

    def start_allreduce_max(self, value: int) -> Callable[[], int]:
        """Begin to agree on the largest of all ranks' values; what it returns waits for it and tells."""
        MPI = mpi.library_here()

        result = np.array([value], dtype=np.int64)
        request = self._mpi.Iallreduce(MPI.IN_PLACE, result, op=MPI.MAX)

        def largest() -> int:
            self._finish(request, "allreduce", result)
            return int(result[0])

        return largest

    def start_send(self, values: np.ndarray, peer: int, tag: int) -> Any:
        """Begin to send bytes, not to be touched until the request is `all_done`; not counted."""
        MPI = mpi.library_here()

        return self._mpi.Isend([values, MPI.BYTE], peer, tag)

    def start_receive(self, values: np.ndarray, peer: int, tag: int) -> Any:
        """Begin to receive bytes, which have arrived once the request is `all_done`."""
        MPI = mpi.library_here()

        return self._mpi.Irecv([values, MPI.BYTE], peer, tag)

    def test_some(self, requests: list[Any]) -> bool:
        """One call of MPI_Testsome for all these requests, sent and received: whether any was done."""
        MPI = mpi.library_here()

        return bool(requests) and bool(MPI.Request.Testsome(requests))

    @staticmethod
    def all_done(requests: Sequence[Any]) -> bool:
        """Whether all of them were done at the last `test_some`."""
        MPI = mpi.library_here()

        return all(request == MPI.REQUEST_NULL for request in requests)

    @contextmanager
    def on_this_host(self) -> Iterator["Communicator"]:
        """The ranks on this host, for as long as the block lasts. Entering and leaving it are collective."""
        MPI = mpi.library_here()

        split = self._mpi.Split_type(MPI.COMM_TYPE_SHARED)
        here, all_ranks = split.Get_group(), self._mpi.Get_group()
        in_job = [self.ranks[rank] for rank in here.Translate_ranks(list(range(split.Get_size())), all_ranks)]
        here.Free()
        all_ranks.Free()
        local = Communicator(split, f"{self._name}:{in_job}", in_job, self.whereabouts)
        yield local
        local.mpi.Free()

    def hosts(self) -> list[str]:
        """Every rank's host name."""
        return self.allgather(socket.gethostname())
