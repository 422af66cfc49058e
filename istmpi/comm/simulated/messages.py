"""Messages from rank to rank of a simulated job: delayed, overtaking each other where MPI allows it, matched as by MPI.

Two messages from one rank to another with the same tag arrive in the order in which they were sent; others need not.
One that is received with whatever tag is the first of its sender that was not received.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from istmpi.comm.simulated.network import Context, Cut, Network
from istmpi.comm.simulated.requests import (
    ANY_SOURCE,
    ANY_TAG,
    ERR_PROC_FAILED,
    ERR_PROC_FAILED_PENDING,
    ERR_REVOKED,
    ERR_TRUNCATE,
    PROC_NULL,
    MPIError,
    Request,
)


@dataclass(eq=False)
class Message:
    """One message; the ranks are those of the world."""

    source: int
    destination: int
    tag: int
    number: int
    """Among those of its sender to its receiver."""
    values: np.ndarray | bytes
    """Where it waits at its sender, that one's own memory."""
    sent: Request
    lost: bool = False


@dataclass(eq=False)
class Receive:
    """A receive that was posted."""

    source: int
    tag: int
    into: np.ndarray | None
    """None for a Python object."""
    request: Request


@dataclass
class Box:
    """What one rank has on one communicator."""

    posted: list[Receive] = field(default_factory=list)
    arrived: list[Message] = field(default_factory=list)
    flying: list[Message] = field(default_factory=list)

    def found(self, source: int, tag: int) -> Message | None:
        """The message that a receive of this kind gets now, of those that arrived."""
        for message in self.arrived:
            if source in (ANY_SOURCE, message.source) and tag in (ANY_TAG, message.tag):
                if tag != ANY_TAG or message.number == min(
                    one.number for one in (*self.flying, *self.arrived) if one.source == message.source
                ):
                    return message
        return None


class Mail:
    """All messages of a job."""

    def __init__(self, network: Network):
        self._network = network
        self._boxes: dict[tuple[int, int], Box] = {}
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._latest: dict[tuple[int, int, int, int], float] = {}
        """When the last message that may not be overtaken arrives."""
        network.on_cut.append(self._lose)

    def box(self, context: Context, rank: int) -> Box:
        """What a rank has on a communicator."""
        return self._boxes.setdefault((context.number, rank), Box())

    def send(self, context: Context, source: int, destination: int, tag: int, values: np.ndarray | bytes) -> Request:
        """Begin to send bytes."""
        network, nbytes = self._network, len(values)
        request = Request(network, source, f"a send with tag {tag}")
        request.context = context
        if destination == PROC_NULL:
            request.finish()
        elif source in context.revoked:
            request.finish(MPIError(ERR_REVOKED))
        elif destination in network.known_dead[source]:
            if network.weather.lost():  # libraries tell of it at once, or of the request
                raise MPIError(ERR_PROC_FAILED)
            request.finish(MPIError(ERR_PROC_FAILED))
        else:
            self._put(context, Message(source, destination, tag, 0, values, request), nbytes)
        return network.begun(request)

    def _put(self, context: Context, message: Message, nbytes: int) -> None:
        network, ends = self._network, (context.number, message.source, message.destination)
        network.messages.update(messages=1, bytes=nbytes)
        message.number = self._numbers[ends] = self._numbers.get(ends, 0) + 1
        message.sent.needs = lambda: {message.destination}
        if network.weather.eager(nbytes):
            message.values = bytes(message.values)
            message.sent.finish()
        message.lost = network.apart(message.source, message.destination)
        self.box(context, message.destination).flying.append(message)
        behind = self._latest.get((*ends, message.tag), 0.0)
        arrives = max(network.scheduler.now + network.weather.message(nbytes), behind)
        self._latest[(*ends, message.tag)] = arrives
        network.scheduler.at(arrives, self._deliver, (context, message))

    def _deliver(self, what: tuple[Context, Message]) -> None:
        context, message = what
        box = self.box(context, message.destination)
        box.flying.remove(message)
        if message.lost or message.destination in self._network.dead:
            return
        box.arrived.append(message)
        self._match(box)
        self._network.stir(message.destination)

    def receive(self, context: Context, rank: int, source: int, tag: int, into: np.ndarray | None) -> Request:
        """Begin to receive a message: bytes, or without a place for them a Python object's."""
        network, box = self._network, self.box(context, rank)
        request = Request(network, rank, f"a receive with {'any tag' if tag == ANY_TAG else f'tag {tag}'}")
        request.context = context
        if source == PROC_NULL:
            request.finish()
        elif rank in context.revoked:
            request.finish(MPIError(ERR_REVOKED))
        else:
            receive = Receive(source, tag, into, request)
            box.posted.append(receive)
            request.undo = lambda: box.posted.remove(receive) if receive in box.posted else None
            request.needs = lambda: self._needs(context, box, receive)
            self._match(box)
            if not request.done and (dead := self._hopeless(context, rank, source, box)):
                request.undo()
                request.finish(MPIError(dead))
        return network.begun(request)

    def _needs(self, context: Context, box: Box, receive: Receive) -> set[int]:
        under_way = {message.source for message in box.flying if not message.lost}
        sources = set(context.members) - {receive.request.rank} if receive.source == ANY_SOURCE else {receive.source}
        return sources - under_way

    def _hopeless(self, context: Context, rank: int, source: int, box: Box) -> int:
        known = self._network.known_dead[rank]
        if source == ANY_SOURCE:
            return ERR_PROC_FAILED_PENDING if known.intersection(context.members) - context.acknowledged[rank] else 0
        return ERR_PROC_FAILED if source in known and not any(one.source == source for one in box.flying) else 0

    def _match(self, box: Box) -> None:
        for receive in list(box.posted):
            if message := box.found(receive.source, receive.tag):
                box.posted.remove(receive)
                self._hand_over(box, message, receive)

    def _hand_over(self, box: Box, message: Message, receive: Receive) -> None:
        box.arrived.remove(message)
        request, nbytes = receive.request, len(message.values)
        request.status.take(message.source, message.tag, nbytes)
        if receive.into is None:
            request.value = bytes(message.values)
        elif nbytes <= len(receive.into):
            receive.into[:nbytes] = np.frombuffer(message.values, dtype=np.uint8)
        request.finish(MPIError(ERR_TRUNCATE) if receive.into is not None and nbytes > len(receive.into) else None)
        if not message.sent.done:
            self._network.scheduler.after(self._network.weather.message(), lambda _: message.sent.finish())

    def _lose(self, cut: Cut) -> None:
        """What had not left its sender's own memory never passes; of the rest, some is lost."""
        for (_, destination), box in self._boxes.items():
            lost = self._network.weather.lost()
            for message in box.flying:
                if cut(message.source, destination):
                    message.lost = message.lost or lost or not isinstance(message.values, bytes)
            box.arrived = [
                message
                for message in box.arrived
                if not cut(message.source, destination) or isinstance(message.values, bytes)
            ]
