"""Stand-ins for mpi4py's MPI module and communicators."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from istmpi.errors import SimulationError
from istmpi.simulated.collectives import Collectives
from istmpi.simulated.messages import Mail
from istmpi.simulated.network import ANY_SOURCE, ANY_TAG, Context, Group, Network, Request, Status

IN_PLACE = object()


class Job:
    def __init__(self, network: Network):
        self.network = network
        self.mail, self.collectives = Mail(network), Collectives(network)


class SimulatedCommunicator:
    """A stand-in for mpi4py's ``Intracomm`` on one rank. ``members[r]`` is the world rank of its
    rank r."""

    def __init__(self, job: Job, context: Context, me: int):
        self._job, self._network, self._context, self._me = job, job.network, context, me
        self.members = context.members
        self.rank, self.size = self.members.index(me), len(self.members)

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Get_group(self) -> Group:
        return Group(self.members)

    def Free(self) -> None:
        self._network.call(self._me, "Free")

    # ---- collective calls

    def _collective(
        self,
        name: str,
        brought: Any,
        needs: Sequence[int] | None,
        leave: Callable[[list[Any]], Any] = lambda _: None,
    ) -> Request:
        """Begin a collective call. ``needs``: the ranks whose values this rank needs; None for
        all."""
        self._network.call(self._me, name)
        needed = self.members if needs is None else [self.members[rank] for rank in needs]
        return self._job.collectives.enter(
            self._context,
            self._me,
            name,
            brought,
            needed,
            lambda by_member: leave([by_member.get(member) for member in self.members]),
        )

    def _result(self, request: Request) -> Any:
        self._network.wait(request)
        request.null = True
        return request.value

    def Ibarrier(self) -> Request:
        return self._collective("Barrier", None, None)

    def Ialltoallv(self, send: Sequence[Any], receive: Sequence[Any]) -> Request:
        def leave(brought: list[Any]) -> None:
            parts = [part[self.rank] if part else b"" for part in brought]
            for rank, (target, part) in enumerate(zip(_parts(receive), parts, strict=True)):
                if len(target):
                    target[:] = _exactly(part, len(target), f"Alltoallv from rank {rank}")

        needs = [rank for rank, count in enumerate(receive[1]) if count]
        return self._collective("Alltoallv", [*map(bytes, _parts(send))], needs, leave)

    def Iallgatherv(self, send: Any, receive: Sequence[Any]) -> Request:
        return self._gather("Allgatherv", send, receive)

    def Iallgather(self, send: Any, receive: Any) -> Request:
        return self._gather("Allgather", send, receive)

    def Igatherv(self, send: Any, receive: Any, root: int = 0) -> Request:
        return self._gather("Gatherv", send, receive, root)

    def _gather(self, name: str, send: Any, receive: Any, root: int | None = None) -> Request:
        receives = root in (None, self.rank)

        def leave(brought: list[bytes]) -> None:
            if not receives:
                return
            if name.endswith("v"):
                for target, part in zip(_parts(receive), brought, strict=True):
                    target[:] = _exactly(part, len(target), name)
            else:
                target = bytes_of(receive)
                target[:] = _exactly(b"".join(brought), len(target), name)

        words = name if root is None else f"{name} at {root}"
        return self._collective(words, bytes(bytes_of(send)), None if receives else [], leave)

    def Ibcast(self, buffer: Any, root: int = 0) -> Request:
        values = bytes_of(buffer)

        def leave(brought: list[bytes]) -> None:
            if self.rank != root:
                values[:] = _exactly(brought[root], len(values), "Bcast")

        return self._collective(
            f"Bcast of {root}", bytes(values) if self.rank == root else None, [root], leave
        )

    def Iallreduce(
        self, send: Any, receive: np.ndarray, op: Callable[[Any, Any], Any] = np.add
    ) -> Request:
        def leave(brought: list[np.ndarray]) -> None:
            result = brought[0]
            for values in brought[1:]:
                result = op(result, values)
            receive[...] = result

        return self._collective(
            "Allreduce", (receive if send is IN_PLACE else send).copy(), None, leave
        )

    def Barrier(self) -> None:
        self._result(self.Ibarrier())

    # ---- messages

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> Request:
        self._network.call(self._me, "Isend")
        return self._job.mail.send(
            self._context, self._me, self.members[dest], tag, bytes_of(buffer)
        )

    def Irecv(self, buffer: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        self._network.call(self._me, "Irecv")
        return self._job.mail.receive(
            self._context, self._me, self._world(source), tag, bytes_of(buffer)
        )

    def isend(self, value: Any, dest: int, tag: int = 0) -> Request:
        self._network.call(self._me, "isend")
        return self._job.mail.send(
            self._context, self._me, self.members[dest], tag, pickle.dumps(value)
        )

    def irecv(self, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        self._network.call(self._me, "irecv")
        return self._job.mail.receive(self._context, self._me, self._world(source), tag, None)

    def recv(self, source: int = ANY_SOURCE) -> Any:
        return self.irecv(source).wait()

    def iprobe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> bool:
        self._network.poll(self._me, "Iprobe")
        message = self._job.mail.box(self._context, self._me).first(self._world(source), tag)
        if message and status is not None:
            status.source, status.tag = self.members.index(message.source), message.tag
        return message is not None

    def _world(self, rank: int) -> int:
        return rank if rank == ANY_SOURCE else self.members[rank]

    # ---- other communicators

    def _new(self, name: str, color: int = 0) -> SimulatedCommunicator:
        by_rank = self._result(self._collective(name, (color, {}), None, lambda by_rank: by_rank))
        made = by_rank[0][1]
        if color not in made:  # the first rank that leaves makes the context for all
            members = [
                member
                for member, (its, _) in zip(self.members, by_rank, strict=True)
                if its == color
            ]
            made[color] = Context(self._network, members)
        return SimulatedCommunicator(self._job, made[color], self._me)

    def Dup(self) -> SimulatedCommunicator:
        return self._new("Dup")

    def Split_type(self, split_type: object) -> SimulatedCommunicator:
        return self._new("Split_type")

    def Split(self, color: int = 0) -> SimulatedCommunicator:
        return self._new("Split", color)

    def Create_group(self, group: Group) -> SimulatedCommunicator:
        self._network.call(self._me, "Create_group")
        members = group.members
        request = self._job.collectives.enter(
            self._context,
            self._me,
            f"Create_group of {members}",
            [],
            members,
            lambda by: by[members[0]],
            members,
        )
        made = self._result(request)
        if not made:
            made.append(Context(self._network, members))
        return SimulatedCommunicator(self._job, made[0], self._me)


# ---- buffers as mpi4py takes them: an array or other memory, or a list that begins with one


def bytes_of(buffer: Any) -> np.ndarray:
    memory = buffer[0] if isinstance(buffer, list | tuple) else buffer
    values = memory if isinstance(memory, np.ndarray) else np.frombuffer(memory, dtype=np.uint8)
    assert values.flags.c_contiguous, "MPI needs contiguous memory"
    return values.reshape(-1).view(np.uint8)


def _parts(buffer: Sequence[Any]) -> Iterator[np.ndarray]:
    values = bytes_of(buffer)
    return (
        values[start : start + count] for count, start in zip(buffer[1], buffer[2], strict=True)
    )


def _exactly(values: bytes, nbytes: int, call: str) -> np.ndarray:
    if len(values) != nbytes:
        raise SimulationError(f"{call}: {len(values)} bytes were sent where {nbytes} were expected")
    return np.frombuffer(values, dtype=np.uint8)


class SimulatedMPI:
    BYTE, COMM_TYPE_SHARED = "BYTE", "COMM_TYPE_SHARED"
    IN_PLACE, MAX = IN_PLACE, np.maximum
    THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
    Request, Status = Request, Status
    REQUEST_NULL = Request()
    Exception = ()

    def __init__(self, job: Job, world: Context, rank: int):
        self._network, self._rank = job.network, rank
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
