"""Stand-ins for mpi4py's MPI module and communicators."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from istmpi.errors import SimulationError
from istmpi.simulated.collectives import Collectives
from istmpi.simulated.messages import Mail
from istmpi.simulated.network import (
    ANY_SOURCE,
    ANY_TAG,
    Context,
    Group,
    Network,
    Operation,
    Request,
    Status,
)

IN_PLACE = object()


class Job:
    def __init__(self, network: Network):
        self.network = network
        self.mail = Mail(network)
        self.collectives = Collectives(network)
        self._duplicates: dict[tuple[int, int], Context] = {}
        self._counts: dict[tuple[int, int], int] = {}

    def duplicate(self, context: Context, me: int) -> Context:
        """Return the context of a rank's next duplicate; the first rank that asks makes it."""
        caller = (context.number, me)
        count = self._counts.get(caller, 0)
        self._counts[caller] = count + 1
        key = (context.number, count)
        if key not in self._duplicates:
            self._duplicates[key] = Context(self.network, context.members)
        return self._duplicates[key]


class SimulatedCommunicator:
    """A stand-in for mpi4py's ``Intracomm`` on one rank.

    ``members[r]`` is the world rank of its rank r.
    """

    def __init__(self, job: Job, context: Context, me: int):
        self._job = job
        self._network = job.network
        self._context = context
        self._me = me
        self.members = context.members
        self.rank = self.members.index(me)
        self.size = len(self.members)

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Get_group(self) -> Group:
        return Group(self.members)

    def Free(self) -> None:
        self._network.call(self._me, "Free")

    # ---- collective calls

    def _begin_collective(
        self,
        name: str,
        brought: Any,
        needs: Sequence[int] | None,
        finish: Callable[[list[Any]], Any] = lambda _: None,
    ) -> Operation:
        """Begin a collective call; ``finish`` gets the values in the order of ranks.

        ``needs``: the ranks whose values this rank needs; None for all.
        """
        self._network.call(self._me, name)
        needed: Sequence[int] = self.members
        if needs is not None:
            needed = [self.members[rank] for rank in needs]

        def finish_in_order(by_member: dict[int, Any]) -> Any:
            return finish([by_member.get(member) for member in self.members])

        return self._job.collectives.enter(
            self._context, self._me, name, brought, needed, finish_in_order
        )

    def _wait_for(self, request: Operation) -> Any:
        self._network.wait(request)
        request.null = True
        return request.value

    def Ibarrier(self) -> Operation:
        return self._begin_collective("Barrier", None, None)

    def Ialltoallv(self, send: Sequence[Any], receive: Sequence[Any]) -> Operation:
        def finish(of_ranks: list[Any]) -> None:
            parts = [part[self.rank] if part else b"" for part in of_ranks]
            for rank, (target, part) in enumerate(zip(_split(receive), parts, strict=True)):
                if len(target):
                    target[:] = _require_length(part, len(target), f"Alltoallv from rank {rank}")

        parts = [bytes(part) for part in _split(send)]
        # As in MPI, a rank leaves once it has received, even if others still wait.
        needs = [rank for rank, count in enumerate(receive[1]) if count]
        return self._begin_collective("Alltoallv", parts, needs, finish)

    def Iallgatherv(self, send: Any, receive: Sequence[Any]) -> Operation:
        return self._gather("Allgatherv", send, receive)

    def Iallgather(self, send: Any, receive: Any) -> Operation:
        return self._gather("Allgather", send, receive)

    def Igatherv(self, send: Any, receive: Any, root: int = 0) -> Operation:
        return self._gather("Gatherv", send, receive, root)

    def _gather(self, name: str, send: Any, receive: Any, root: int | None = None) -> Operation:
        """Begin a gather, to all ranks if ``root`` is None."""

        def finish(of_ranks: list[bytes]) -> None:
            if name.endswith("v"):
                for target, part in zip(_split(receive), of_ranks, strict=True):
                    target[:] = _require_length(part, len(target), name)
            else:
                target = view_bytes(receive)
                target[:] = _require_length(b"".join(of_ranks), len(target), name)

        part = bytes(view_bytes(send))
        if root is None:
            return self._begin_collective(name, part, None, finish)
        if root == self.rank:
            return self._begin_collective(f"{name} at {root}", part, None, finish)
        # A rank that only sends needs no other rank, and has no result.
        return self._begin_collective(f"{name} at {root}", part, [])

    def Ibcast(self, buffer: Any, root: int = 0) -> Operation:
        values = view_bytes(buffer)

        def finish(of_ranks: list[bytes]) -> None:
            if self.rank != root:
                values[:] = _require_length(of_ranks[root], len(values), "Bcast")

        brought = bytes(values) if self.rank == root else None
        return self._begin_collective(f"Bcast of {root}", brought, [root], finish)

    def Iallreduce(
        self, send: Any, receive: np.ndarray, op: Callable[[Any, Any], Any] = np.add
    ) -> Operation:
        def finish(of_ranks: list[np.ndarray]) -> None:
            result = of_ranks[0]
            for values in of_ranks[1:]:
                result = op(result, values)
            receive[...] = result

        values = receive if send is IN_PLACE else send
        # A copy, because an all-reduce in place overwrites the memory that other ranks still read.
        return self._begin_collective("Allreduce", values.copy(), None, finish)

    def Barrier(self) -> None:
        self._wait_for(self.Ibarrier())

    # ---- messages

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> Operation:
        self._network.call(self._me, "Isend")
        return self._send(view_bytes(buffer), dest, tag)

    def Irecv(self, buffer: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Operation:
        self._network.call(self._me, "Irecv")
        return self._receive(view_bytes(buffer), source, tag)

    def isend(self, value: Any, dest: int, tag: int = 0) -> Operation:
        self._network.call(self._me, "isend")
        return self._send(pickle.dumps(value), dest, tag)

    def irecv(self, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Operation:
        self._network.call(self._me, "irecv")
        return self._receive(None, source, tag)

    def recv(self, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Any:
        return self.irecv(source, tag).wait()

    def iprobe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> bool:
        self._network.poll(self._me, "Iprobe")
        box = self._job.mail.box(self._context, self._me)
        message = box.find_first(self._world_rank(source), tag)
        if message is not None and status is not None:
            status.source = self.members.index(message.source)
            status.tag = message.tag
        return message is not None

    def _send(self, values: np.ndarray | bytes, dest: int, tag: int) -> Operation:
        return self._job.mail.send(self._context, self._me, self.members[dest], tag, values)

    def _receive(self, into: np.ndarray | None, source: int, tag: int) -> Operation:
        world_rank = self._world_rank(source)
        return self._job.mail.receive(self._context, self._me, world_rank, tag, into)

    def _world_rank(self, rank: int) -> int:
        return rank if rank == ANY_SOURCE else self.members[rank]

    # ---- other communicators

    def _divide(self, name: str, color: int = 0) -> SimulatedCommunicator:
        """Return a communicator of the ranks that give the same color."""
        request = self._begin_collective(name, (color, {}), None, lambda by_rank: by_rank)
        by_rank = self._wait_for(request)
        contexts = by_rank[0][1]
        if color not in contexts:  # the first rank that leaves makes the context for all
            members = []
            for member, (color_of_member, _) in zip(self.members, by_rank, strict=True):
                if color_of_member == color:
                    members.append(member)
            contexts[color] = Context(self._network, members)
        return SimulatedCommunicator(self._job, contexts[color], self._me)

    def Dup(self) -> SimulatedCommunicator:
        return self._divide("Dup")

    def Idup(self) -> tuple[SimulatedCommunicator, Operation]:
        request = self._begin_collective("Idup", None, None)
        context = self._job.duplicate(self._context, self._me)
        return SimulatedCommunicator(self._job, context, self._me), request

    def Split(self, color: int = 0) -> SimulatedCommunicator:
        return self._divide("Split", color)

    def Create_group(self, group: Group) -> SimulatedCommunicator:
        self._network.call(self._me, "Create_group")
        members = group.members
        request = self._job.collectives.enter(
            context=self._context,
            rank=self._me,
            name=f"Create_group of {members}",
            brought=[],
            needs=members,
            leave=lambda by_member: by_member[members[0]],
            among=members,
        )
        contexts = self._wait_for(request)
        if not contexts:  # the first rank that leaves makes the context for all
            contexts.append(Context(self._network, members))
        return SimulatedCommunicator(self._job, contexts[0], self._me)


# ---- buffers as mpi4py takes them: an array or other memory, or a list that begins with one


def view_bytes(buffer: Any) -> np.ndarray:
    """Return a buffer's memory as bytes, not copied."""
    memory = buffer[0] if isinstance(buffer, list | tuple) else buffer
    if not isinstance(memory, np.ndarray):
        memory = np.frombuffer(memory, dtype=np.uint8)
    assert memory.flags.c_contiguous, "MPI needs contiguous memory"
    return memory.reshape(-1).view(np.uint8)


def _split(buffer: Sequence[Any]) -> Iterator[np.ndarray]:
    """Yield each rank's part of a buffer ``[memory, counts, displacements, type]``."""
    values = view_bytes(buffer)
    for count, start in zip(buffer[1], buffer[2], strict=True):
        yield values[start : start + count]


def _require_length(values: bytes, nbytes: int, call: str) -> np.ndarray:
    """Return values as an array of bytes; raise SimulationError if they are not ``nbytes``."""
    if len(values) != nbytes:
        raise SimulationError(f"{call}: {len(values)} bytes were sent where {nbytes} were expected")
    return np.frombuffer(values, dtype=np.uint8)


class SimulatedMPI:
    """A stand-in for mpi4py's module ``MPI`` on one rank."""

    BYTE = "BYTE"
    IN_PLACE = IN_PLACE
    MAX = np.maximum
    THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
    Request = Request
    Status = Status
    REQUEST_NULL = Request()
    Exception = ()

    def __init__(self, job: Job, world: Context, rank: int):
        self._network = job.network
        self._rank = rank
        self.COMM_WORLD = SimulatedCommunicator(job, world, rank)

    def Query_thread(self) -> int:
        return self.THREAD_SINGLE  # with several threads, the seed would not decide which one runs

    def get_vendor(self) -> tuple[str, tuple[int, ...]]:
        return "simulated", ()

    # ---- for `istmpi.comm.mpi.stand_in`

    def now(self) -> float:
        return self._network.scheduler.now

    def rest(self) -> None:
        self._network.rest(self._rank)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulated MPI has no {name}: see {__name__}")
