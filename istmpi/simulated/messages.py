"""Messages between ranks of a simulated job, matched as MPI does.

Messages with one tag from one rank to another arrive in the order of sending. Other messages arrive
in any order. A receive with any tag gets its sender's first message that is not received yet.
"""

import pickle
from dataclasses import dataclass, field

import numpy as np

from istmpi.errors import SimulationError
from istmpi.simulated.network import ANY_SOURCE, ANY_TAG, Context, Network, Operation


@dataclass(eq=False)
class Message:
    source: int
    destination: int
    tag: int
    number: int
    """The message's number among the messages from its sender to its receiver."""
    values: np.ndarray | bytes
    """A copy (bytes), or the sender's memory, which the sender keeps until its send has ended."""
    sent: Operation
    lost: bool = False


@dataclass(eq=False)
class Receive:
    source: int
    tag: int
    into: np.ndarray | None
    """The memory for the values; None for a pickled value."""
    request: Operation


@dataclass
class Box:
    """The messages to a rank in a communicator, and its receives."""

    posted: list[Receive] = field(default_factory=list)
    arrived: list[Message] = field(default_factory=list)
    flying: list[Message] = field(default_factory=list)

    def find_first(self, source: int, tag: int) -> Message | None:
        """Return the arrived message that a receive gets; None if there is none yet."""
        for message in self.arrived:
            source_fits = source in (ANY_SOURCE, message.source)
            if not source_fits or tag not in (ANY_TAG, message.tag):
                continue
            # A receive with any tag must not overtake: it waits for the sender's first message.
            if tag != ANY_TAG or message.number == self._first_number(message.source):
                return message
        return None

    def _first_number(self, source: int) -> int:
        messages = (*self.flying, *self.arrived)
        return min(message.number for message in messages if message.source == source)


class Mail:
    def __init__(self, network: Network):
        self._network = network
        self._boxes: dict[tuple[int, int], Box] = {}
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._latest: dict[tuple[int, int, int, int], float] = {}
        """The latest arrival from a rank to another with a tag."""
        network.on_kill.append(self._lose)

    def box(self, context: Context, rank: int) -> Box:
        return self._boxes.setdefault((context.number, rank), Box())

    def send(
        self, context: Context, source: int, destination: int, tag: int, values: np.ndarray | bytes
    ) -> Operation:
        network = self._network
        nbytes = len(values)
        request = Operation(network, source, f"a send with tag {tag}")
        request.needs = lambda: {destination}
        network.messages.update(messages=1, bytes=nbytes)
        ends = (context.number, source, destination)
        number = self._numbers.get(ends, 0) + 1
        self._numbers[ends] = number
        message = Message(source, destination, tag, number, values, sent=request)
        # MPI keeps a copy of an eager message, so its sender need not wait.
        if network.timing.is_eager(nbytes):
            message.values = bytes(values)
            request.finish()
        self.box(context, destination).flying.append(message)
        # Messages of one stream must not overtake each other.
        stream = (*ends, tag)
        arrival = network.scheduler.now + network.timing.message_seconds(nbytes)
        arrival = max(arrival, self._latest.get(stream, 0.0))
        self._latest[stream] = arrival
        network.scheduler.at(arrival, self._deliver, (context, message))
        return network.begin(request)

    def _deliver(self, event: tuple[Context, Message]) -> None:
        """Put a message that has arrived into its receiver's box."""
        context, message = event
        box = self.box(context, message.destination)
        box.flying.remove(message)
        if message.lost or message.destination in self._network.dead:
            return
        box.arrived.append(message)
        self._match(box)
        self._network.stir(message.destination)

    def receive(
        self, context: Context, rank: int, source: int, tag: int, into: np.ndarray | None
    ) -> Operation:
        """Begin a receive into the bytes ``into``, or of a pickled value if it is None."""
        box = self.box(context, rank)
        words = "any tag" if tag == ANY_TAG else f"tag {tag}"
        request = Operation(self._network, rank, f"a receive with {words}")
        receive = Receive(source, tag, into, request)
        box.posted.append(receive)

        def undo() -> None:
            if receive in box.posted:
                box.posted.remove(receive)

        request.undo = undo
        request.needs = lambda: self._find_needed(context, box, receive)
        self._match(box)
        return self._network.begin(request)

    def _find_needed(self, context: Context, box: Box, receive: Receive) -> set[int]:
        """Return the ranks that must still send something for a receive to end."""
        sources = {receive.source}
        if receive.source == ANY_SOURCE:
            sources = set(context.members) - {receive.request.rank}
        under_way = {message.source for message in box.flying if not message.lost}
        return sources - under_way

    def _match(self, box: Box) -> None:
        for receive in list(box.posted):
            message = box.find_first(receive.source, receive.tag)
            if message is not None:
                box.posted.remove(receive)
                self._hand_over(box, message, receive)

    def _hand_over(self, box: Box, message: Message, receive: Receive) -> None:
        """End a receive with its message, and later the send that waits for it."""
        scheduler = self._network.scheduler
        box.arrived.remove(message)
        nbytes = len(message.values)
        if receive.into is None:
            receive.request.value = pickle.loads(bytes(message.values))
        elif nbytes <= len(receive.into):
            receive.into[:nbytes] = np.frombuffer(message.values, dtype=np.uint8)
        else:
            error = (
                f"rank {message.source} sent {nbytes} bytes with tag {message.tag} where rank "
                f"{message.destination} receives at most {len(receive.into)}"
            )
            scheduler.end(SimulationError(error))
        receive.request.finish()
        # A sender that waits learns of the receipt a message's time later.
        if not message.sent.done:
            seconds = self._network.timing.message_seconds()
            scheduler.after(seconds, lambda _: message.sent.finish())

    def _lose(self, killed: int) -> None:
        """Lose a killed rank's messages: all that lie in its memory, and others at random."""
        for box in self._boxes.values():
            lost = self._network.timing.is_lost()
            for message in box.flying:
                if message.source == killed:
                    message.lost = lost or not isinstance(message.values, bytes)
            box.arrived = [
                message
                for message in box.arrived
                if message.source != killed or isinstance(message.values, bytes)
            ]
