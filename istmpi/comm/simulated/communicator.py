"""A communicator of a simulated job, by mpi4py's names: those calls that `istmpi.comm` makes, and their like."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from istmpi.comm.simulated.meetings import Agreements, Brought, Meetings
from istmpi.comm.simulated.messages import Mail
from istmpi.comm.simulated.network import Context, Network
from istmpi.comm.simulated.requests import (
    ANY_SOURCE,
    ANY_TAG,
    ERR_PROC_FAILED,
    ERR_REVOKED,
    Group,
    MPIError,
    Request,
    Status,
)
from istmpi.comm.simulated.values import array, bytes_of, exactly, packed, unpacked

IN_PLACE = object()
Combine = Callable[[Any, Any], Any]


class Job:
    """A network with all that its ranks do on it together."""

    def __init__(self, network: Network):
        self.network = network
        self.mail, self.meetings, self.agreements = Mail(network), Meetings(network), Agreements(network)


class SimulatedCommunicator:
    """mpi4py's ``Intracomm`` for one rank. Who has a communicator's rank r is ``members[r]`` in the world."""

    def __init__(self, job: Job, context: Context, me: int):
        self._job, self._network, self._context, self._me = job, job.network, context, me
        self.members = context.members
        self.rank, self.size = self.members.index(me), len(self.members)

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Get_group(self) -> Group:
        return Group(self.members, self._me)

    @property
    def group(self) -> Group:
        return self.Get_group()

    def Free(self) -> None:
        self._network.call(self._me, "Free")

    def Abort(self, errorcode: int = 0) -> None:
        raise SystemExit(errorcode)

    def Set_errhandler(self, handler: object) -> None:
        """Errors are raised, whatever is asked for."""

    # ---- collective calls, of which the blocking ones are the others' begin and end

    def _meet(
        self, name: str, brought: Any, needs: Sequence[int] | None, leave: Callable[[list[Any]], Any] = lambda _: None
    ) -> Request:
        self._network.call(self._me, name)
        needed = self.members if needs is None else [self.members[rank] for rank in needs]
        return self._job.meetings.enter(
            self._context, self._me, name, brought, needed, lambda all: leave([all.get(one) for one in self.members])
        )

    def _through(self, request: Request) -> Any:
        self._network.wait(request)
        request.null = True
        if request.error:
            raise request.error
        return request.value

    def Ibarrier(self) -> Request:
        return self._meet("Barrier", None, None)

    def Ialltoallv(self, send: Sequence[Any], receive: Sequence[Any]) -> Request:
        sent, counts, starts = bytes(bytes_of(send)), send[1], send[2]
        into, expected, places = bytes_of(receive), receive[1], receive[2]

        def leave(brought: list[Any]) -> None:
            for rank, part in enumerate(brought):
                if expected[rank]:
                    into[places[rank] : places[rank] + expected[rank]] = exactly(
                        part[self.rank] if part else b"", expected[rank], f"Alltoallv from rank {rank}"
                    )

        parts = [sent[start : start + count] for start, count in zip(starts, counts, strict=True)]
        return self._meet("Alltoallv", parts, [rank for rank, count in enumerate(expected) if count], leave)

    def Iallgatherv(self, send: Any, receive: Sequence[Any]) -> Request:
        into, counts, starts = bytes_of(receive), receive[1], receive[2]

        def leave(brought: list[bytes]) -> None:
            for part, start, count in zip(brought, starts, counts, strict=True):
                into[start : start + count] = exactly(part, count, "Allgatherv")

        return self._meet("Allgatherv", bytes(bytes_of(send)), None, leave)

    def Iallgather(self, send: Any, receive: Any) -> Request:
        into = bytes_of(receive)

        def leave(brought: list[bytes]) -> None:
            into[:] = exactly(b"".join(brought), len(into), "Allgather")

        return self._meet("Allgather", bytes(bytes_of(send)), None, leave)

    def Igather(self, send: Any, receive: Any, root: int = 0) -> Request:
        def leave(brought: list[bytes]) -> None:
            if self.rank == root:
                into = bytes_of(receive)
                into[:] = exactly(b"".join(brought), len(into), "Gather")

        return self._meet(f"Gather at {root}", bytes(bytes_of(send)), None if self.rank == root else [], leave)

    def Igatherv(self, send: Any, receive: Any, root: int = 0) -> Request:
        def leave(brought: list[bytes]) -> None:
            if self.rank == root:
                into = bytes_of(receive)
                for part, start, count in zip(brought, receive[2], receive[1], strict=True):
                    into[start : start + count] = exactly(part, count, "Gatherv")

        return self._meet(f"Gatherv at {root}", bytes(bytes_of(send)), None if self.rank == root else [], leave)

    def Ibcast(self, buffer: Any, root: int = 0) -> Request:
        values = bytes_of(buffer)

        def leave(brought: list[bytes]) -> None:
            if self.rank != root:
                values[:] = exactly(brought[root], len(values), "Bcast")

        return self._meet(f"Bcast of {root}", bytes(values) if self.rank == root else None, [root], leave)

    def Iallreduce(self, send: Any, receive: Any, op: Combine = np.add) -> Request:
        into = array(receive)
        mine = (into if send is IN_PLACE else array(send)).copy()

        def leave(brought: list[np.ndarray]) -> None:
            result = brought[0]
            for values in brought[1:]:
                result = op(result, values)
            into[...] = result

        return self._meet("Allreduce", mine, None, leave)

    def Barrier(self) -> None:
        self._through(self.Ibarrier())

    barrier = Barrier

    def Alltoallv(self, send: Sequence[Any], receive: Sequence[Any]) -> None:
        self._through(self.Ialltoallv(send, receive))

    def Allgatherv(self, send: Any, receive: Sequence[Any]) -> None:
        self._through(self.Iallgatherv(send, receive))

    def Allgather(self, send: Any, receive: Any) -> None:
        self._through(self.Iallgather(send, receive))

    def Gather(self, send: Any, receive: Any, root: int = 0) -> None:
        self._through(self.Igather(send, receive, root))

    def Gatherv(self, send: Any, receive: Any, root: int = 0) -> None:
        self._through(self.Igatherv(send, receive, root))

    def Bcast(self, buffer: Any, root: int = 0) -> None:
        self._through(self.Ibcast(buffer, root))

    def Allreduce(self, send: Any, receive: Any, op: Combine = np.add) -> None:
        self._through(self.Iallreduce(send, receive, op))

    def allgather(self, value: Any) -> list[Any]:
        request = self._meet("allgather of objects", packed(value), None, lambda all: [unpacked(one) for one in all])
        return self._through(request)

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        def leave(brought: list[Any]) -> list[Any] | None:
            return [unpacked(one) for one in brought] if self.rank == root else None

        needs = None if self.rank == root else []
        return self._through(self._meet(f"gather of objects at {root}", packed(value), needs, leave))

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        mine = packed(value) if self.rank == root else None
        request = self._meet(f"bcast of an object of {root}", mine, [root], lambda all: unpacked(all[root]))
        received = self._through(request)
        return value if self.rank == root else received

    def allreduce(self, value: Any, op: Combine = np.add) -> Any:
        values = self.allgather(value)
        result = values[0]
        for other in values[1:]:
            result = op(result, other)
        return result

    # ---- messages

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> Request:
        self._network.call(self._me, "Isend")
        return self._job.mail.send(self._context, self._me, self._world(dest), tag, bytes_of(buffer))

    def Irecv(self, buffer: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        self._network.call(self._me, "Irecv")
        return self._receive(bytes_of(buffer), source, tag)

    def _receive(self, into: np.ndarray | None, source: int, tag: int) -> Request:
        request = self._job.mail.receive(self._context, self._me, self._world(source), tag, into)
        request.on_taking = self._numbered
        return request

    def _world(self, rank: int) -> int:
        return self.members[rank] if rank >= 0 else rank

    def _numbered(self, request: Request) -> None:
        if request.status.source >= 0:
            request.status.source = self.members.index(request.status.source)
        if isinstance(request.value, bytes):
            request.value = pickle.loads(request.value)

    def Send(self, buffer: Any, dest: int, tag: int = 0) -> None:
        self._through(self.Isend(buffer, dest, tag))

    def Recv(self, buffer: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        self.Irecv(buffer, source, tag).Wait(status)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        received, sent = self.Irecv(recvbuf, source, recvtag), self.Isend(sendbuf, dest, sendtag)
        received.Wait(status)
        self._through(sent)

    def isend(self, value: Any, dest: int, tag: int = 0) -> Request:
        self._network.call(self._me, "isend")
        return self._job.mail.send(self._context, self._me, self._world(dest), tag, pickle.dumps(value))

    def irecv(self, buf: object = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        self._network.call(self._me, "irecv")
        return self._receive(None, source, tag)

    def send(self, value: Any, dest: int, tag: int = 0) -> None:
        self._through(self.isend(value, dest, tag))

    def recv(
        self, buf: object = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Any:
        return self.irecv(buf, source, tag).wait(status)

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        self._network.poll(self._me, "Iprobe")
        if self._me in self._context.revoked:
            raise MPIError(ERR_REVOKED)
        message = self._job.mail.box(self._context, self._me).found(self._world(source), tag)
        if message and status is not None:
            status.take(self.members.index(message.source), message.tag, len(message.values))
        if not message and self._known_dead(source):
            raise MPIError(ERR_PROC_FAILED)
        return message is not None

    iprobe = Iprobe

    def _known_dead(self, source: int) -> bool:
        gone = self._network.known_dead[self._me]
        if source == ANY_SOURCE:
            return bool(gone.intersection(self.members) - self._context.acknowledged[self._me])
        return self._world(source) in gone

    # ---- other communicators

    def _made(self, name: str, groups: Callable[[list[Any]], list[tuple[int, ...]]], brought: Any = None) -> Any:
        """A new communicator: one for each of some groups of world ranks, of which this rank is in one or in none."""
        request = self._meet(name, (brought, {}), None, lambda all: all)
        brought_by_all = self._through(request)
        made = brought_by_all[0][1]  # whoever leaves first makes them, for all
        if not made:
            for members in groups([value for value, _ in brought_by_all]):
                context = Context(self._network, members)
                made |= dict.fromkeys(members, context)
        context = made.get(self._me)
        return None if context is None else SimulatedCommunicator(self._job, context, self._me)

    def Dup(self, info: object = None) -> SimulatedCommunicator:
        return self._made("Dup", lambda _: [self.members])

    Clone = Dup

    def Split_type(self, split_type: int, key: int = 0, info: object = None) -> SimulatedCommunicator:
        return self._made("Split_type", lambda _: [self.members])

    def Split(self, color: int = 0, key: int = 0) -> SimulatedCommunicator | None:
        def groups(wanted: list[tuple[int, int]]) -> list[tuple[int, ...]]:
            colours = sorted({its for its, _ in wanted if its >= 0})
            ordered = sorted(range(self.size), key=lambda rank: (wanted[rank][1], rank))
            return [tuple(self.members[rank] for rank in ordered if wanted[rank][0] == its) for its in colours]

        return self._made("Split", groups, (color, key))

    def Create_group(self, group: Group, tag: int = 0) -> SimulatedCommunicator:
        self._network.call(self._me, "Create_group")
        members = group.members
        request = self._job.meetings.enter(
            self._context, self._me, f"Create_group of {members}", [], members, lambda all: all[members[0]], members
        )
        made = self._through(request)
        if not made:
            made.append(Context(self._network, members))
        return SimulatedCommunicator(self._job, made[0], self._me)

    # ---- what goes on when a rank is gone, by the names of mpi4py 4.1

    def Revoke(self) -> None:
        self._network.call(self._me, "Revoke")
        self._network.revoke(self._context, self._me)

    def Is_revoked(self) -> bool:
        return self._me in self._context.revoked

    def Get_failed(self) -> Group:
        gone = self._network.known_dead[self._me]
        return Group([member for member in self.members if member in gone], self._me)

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        failed = self.Get_failed().members
        self._context.acknowledged[self._me] |= set(failed[:num_to_ack])
        return len(self._context.acknowledged[self._me])

    def Agree(self, flag: int) -> int:
        self._network.call(self._me, "Agree")
        network, members = self._network, self.members

        def decide(brought: Brought, gone: set[int]) -> Callable[[int], int]:
            agreed, known = -1, set.intersection(*(acknowledged for _, acknowledged in brought.values()))
            for its, _ in brought.values():
                agreed &= its
            unknown = gone.intersection(members) - known

            def outcome(rank: int) -> int:
                if unknown:
                    network.known_dead[rank] |= unknown
                    raise MPIError(ERR_PROC_FAILED)
                return agreed

            return outcome

        mine = flag, set(self._context.acknowledged[self._me])
        return self._through(self._job.agreements.enter(self._context, self._me, "Agree", mine, decide))

    def Shrink(self) -> SimulatedCommunicator:
        self._network.call(self._me, "Shrink")

        def decide(brought: Brought, gone: set[int]) -> Callable[[int], Context]:
            left = [member for member in self.members if member in brought and member not in gone]
            context = Context(self._network, left)
            return lambda _: context

        context = self._through(self._job.agreements.enter(self._context, self._me, "Shrink", None, decide))
        return SimulatedCommunicator(self._job, context, self._me)
