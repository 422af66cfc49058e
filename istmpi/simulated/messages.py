"""Messages between ranks of a simulated job, matched as MPI does.

Messages with one tag from one rank to another arrive in the order of sending. Other messages arrive
in any order. A receive with any tag gets its sender's first message that is not received yet.
"""

import pickle
from dataclasses import dataclass, field

import numpy as np

from istmpi.errors import SimulationError
from istmpi.simulated.network import ANY_SOURCE, ANY_TAG, Context, Network, Request


@dataclass(eq=False)
class Message:
    source: int
    destination: int
    tag: int
    number: int
    """The message's number among the messages from its sender to its receiver."""
    values: np.ndarray | bytes
    sent: Request
    lost: bool = False


@dataclass(eq=False)
class Receive:
    source: int
    tag: int
    into: np.ndarray | None
    request: Request


@dataclass
class Box:
    posted: list[Receive] = field(default_factory=list)
    arrived: list[Message] = field(default_factory=list)
    flying: list[Message] = field(default_factory=list)

    def first(self, source: int, tag: int) -> Message | None:
        for message in self.arrived:
            if source in (ANY_SOURCE, message.source) and tag in (ANY_TAG, message.tag):
                if tag != ANY_TAG or message.number == min(
                    other.number
                    for other in (*self.flying, *self.arrived)
                    if other.source == message.source
                ):
                    return message
        return None


class Mail:
    def __init__(self, network: Network):
        self._network = network
        self._boxes: dict[tuple[int, int], Box] = {}
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._latest: dict[tuple[int, int, int, int], float] = {}
        network.on_kill.append(self._lose)

    def box(self, context: Context, rank: int) -> Box:
        return self._boxes.setdefault((context.number, rank), Box())

    def send(
        self, context: Context, source: int, destination: int, tag: int, values: np.ndarray | bytes
    ) -> Request:
        network, nbytes, ends = self._network, len(values), (context.number, source, destination)
        request = Request(network, source, f"a send with tag {tag}")
        request.needs = lambda: {destination}
        network.messages.update(messages=1, bytes=nbytes)
        number = self._numbers[ends] = self._numbers.get(ends, 0) + 1
        message = Message(source, destination, tag, number, values, request)
        if network.timing.eager(nbytes):
            message.values = bytes(values)
            request.finish()
        self.box(context, destination).flying.append(message)
        stream = *ends, tag
        arrives = max(
            network.scheduler.now + network.timing.message(nbytes), self._latest.get(stream, 0.0)
        )
        self._latest[stream] = arrives
        network.scheduler.at(arrives, self._deliver, (context, message))
        return network.begun(request)

    def _deliver(self, what: tuple[Context, Message]) -> None:
        context, message = what
        box = self.box(context, message.destination)
        box.flying.remove(message)
        if message.lost or message.destination in self._network.dead:
            return
        box.arrived.append(message)
        self._match(box)
        self._network.stir(message.destination)

    def receive(
        self, context: Context, rank: int, source: int, tag: int, into: np.ndarray | None
    ) -> Request:
        network, box = self._network, self.box(context, rank)
        request = Request(
            network, rank, f"a receive with {'any tag' if tag == ANY_TAG else f'tag {tag}'}"
        )
        receive = Receive(source, tag, into, request)
        box.posted.append(receive)
        request.undo = lambda: box.posted.remove(receive) if receive in box.posted else None
        request.needs = lambda: self._needs(context, box, receive)
        self._match(box)
        return network.begun(request)

    def _needs(self, context: Context, box: Box, receive: Receive) -> set[int]:
        under_way = {message.source for message in box.flying if not message.lost}
        sources = (
            set(context.members) - {receive.request.rank}
            if receive.source == ANY_SOURCE
            else {receive.source}
        )
        return sources - under_way

    def _match(self, box: Box) -> None:
        for receive in list(box.posted):
            if message := box.first(receive.source, receive.tag):
                box.posted.remove(receive)
                self._hand_over(box, message, receive)

    def _hand_over(self, box: Box, message: Message, receive: Receive) -> None:
        box.arrived.remove(message)
        request, nbytes = receive.request, len(message.values)
        if receive.into is None:
            request.value = pickle.loads(message.values)
        elif nbytes <= len(receive.into):
            receive.into[:nbytes] = np.frombuffer(message.values, dtype=np.uint8)
        else:
            ends = f"rank {message.source} sent {nbytes} bytes with tag {message.tag} where rank {message.destination}"
            self._network.scheduler.end(
                SimulationError(f"{ends} receives at most {len(receive.into)}")
            )
        request.finish()
        if not message.sent.done:
            self._network.scheduler.after(
                self._network.timing.message(), lambda _: message.sent.finish()
            )

    def _lose(self, killed: int) -> None:
        for box in self._boxes.values():
            lost = self._network.timing.lost()
            for message in box.flying:
                if message.source == killed:
                    message.lost = lost or not isinstance(message.values, bytes)
            box.arrived = [
                message
                for message in box.arrived
                if message.source != killed or isinstance(message.values, bytes)
            ]
