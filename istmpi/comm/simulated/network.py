"""The ranks of a simulated job, what befalls them, and what they wait for: all that is not about messages."""

from __future__ import annotations

import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import permutations
from pathlib import Path

from istmpi.comm.simulated.faults import Faults, Split, Weather
from istmpi.comm.simulated.requests import (
    ERR_PROC_FAILED,
    ERR_REVOKED,
    MPIError,
    Request,
)
from istmpi.comm.simulated.scheduler import FIRST_REST, Ended, Scheduler, Task
from istmpi.errors import SimulationError
from istmpi.units import in_seconds

KILLED = 137
"""The exit code of a job whose rank was killed, as launchers have it."""
Cut = Callable[[int, int], bool]
"""Whether what a rank sends to another one does not pass any more."""
_COMM = str(Path(__file__).parents[1])


class Network:
    """A job's ranks; it ends with any of them."""

    def __init__(self, ranks: int, faults: Faults):
        self.scheduler = Scheduler(ranks, self.standstill)
        self.weather = Weather(faults)
        self.messages: Counter[str] = Counter()
        """How many were sent, and with how many bytes."""
        self.trace = 0
        """A checksum of all calls with their times."""
        self.happened: list[str] = []
        """The faults that came about."""
        self.dead: set[int] = set()
        self.known_dead: list[set[int]] = [set() for _ in range(ranks)]
        """Of whose end each rank knows."""
        self.contexts = 0
        """Communicators that were made."""
        self.on_cut: list[Callable[[Cut], None]] = []
        """They are told of what does not pass any more, as a rank is killed or the network splits."""
        self._parts: list[tuple[Split, ...]] = [()] * ranks
        """In which part of the network each rank is: by the splits that cut it off."""
        self._pending: list[dict[Request, None]] = [{} for _ in range(ranks)]
        self._stops = {(stop.rank, stop.call): stop.seconds for stop in faults.stops}
        self._kills = {kill.rank: kill for kill in faults.kills}
        self._splits = {(split.rank, split.call): split for split in faults.splits}
        self._slow = faults.slow

    def next_context(self) -> int:
        """The number of a new communicator."""
        self.contexts += 1
        return self.contexts

    # ---- a rank's calls

    def call(self, rank: int, name: str) -> None:
        """A rank calls MPI: time goes by, others may run, and what shall befall it here does."""
        self.scheduler.tasks[rank].rest = FIRST_REST
        self.poll(rank, name)

    def poll(self, rank: int, name: str) -> None:
        """The same for a call that only looks, for which a rank that waits rests no shorter."""
        task = self.scheduler.tasks[rank]
        if self.scheduler.ending or task.dead:
            raise Ended
        task.calls, task.call = task.calls + 1, name
        self.trace = zlib.crc32(f"{rank} {name} {self.scheduler.now!r}".encode(), self.trace)
        seconds = self.weather.call(rank)
        if stopped := self._stops.get((rank, task.calls)):
            self.happened.append(f"rank {rank} stopped for {in_seconds(stopped)} in {name}, its call {task.calls}")
            seconds += stopped
        if split := self._splits.get((rank, task.calls)):
            self._split(split, task)
        kill = self._kills.get(rank)
        if kill and task.calls >= kill.call + kill.posted:
            self._kill(task)
        self.scheduler.spend(task, seconds)

    def begun(self, request: Request) -> Request:
        """Take note of an operation that a rank has begun, all of whose own part is done."""
        task = self.scheduler.tasks[request.rank]
        if not request.done:
            self._pending[request.rank][request] = None
        kill = self._kills.get(request.rank)
        if kill and kill.posted and task.calls == kill.call:
            self._kill(task)
        return request

    def wait(self, request: Request) -> None:
        """Until an operation has ended; its error is not raised."""
        task = self.scheduler.tasks[request.rank]
        while not request.done:
            task.wanted = request
            self.scheduler.pause(task)
        task.wanted = None

    def rest(self, rank: int) -> None:
        """A rank has nothing to do until something comes."""
        task = self.scheduler.tasks[rank]
        if self.scheduler.ending or task.dead:
            raise Ended
        self.scheduler.rest_of(task)

    # ---- what comes to a rank

    def stir(self, rank: int) -> None:
        """Let a rank that rests look again."""
        task = self.scheduler.tasks[rank]
        task.rest = FIRST_REST
        if task.resting:
            task.resting = False
            self.scheduler.wake(task, self.weather.call(rank))

    def ended(self, request: Request) -> None:
        """An operation is over: let its rank go on."""
        self._pending[request.rank].pop(request, None)
        task = self.scheduler.tasks[request.rank]
        if task.wanted is request:
            task.wanted = None
            self.scheduler.wake(task, self.weather.call(request.rank))
        self.stir(request.rank)

    def pending(self, rank: int) -> Iterable[Request]:
        """The operations of a rank that are not over."""
        return list(self._pending[rank])

    # ---- ranks that are gone

    def _kill(self, task: Task) -> None:
        """Let a rank be gone, for good: its thread goes on when all is over, and then but to its end."""
        task.dead = True
        self.dead.add(task.rank)
        self.happened.append(f"rank {task.rank} was killed in {task.call}, its call {task.calls}")
        for request in self.pending(task.rank):
            request.undo()
        self._cut(lambda source, destination: source == task.rank != destination)
        end = SimulationError(f"{self.happened[-1]}; the job ended, as a launcher ends it.")
        end.exit_code = KILLED
        self.scheduler.after(self.weather.noticing(), self.scheduler.end, end)
        self.scheduler.pause(task)

    def _split(self, split: Split, task: Task) -> None:
        """Let no message pass any more between some ranks and the others of their part."""
        before = list(self._parts)
        for rank in split.ranks:
            self._parts[rank] += (split,)
        words = f"the network between ranks {', '.join(map(str, split.ranks))} and the others broke"
        self.happened.append(f"{words} as rank {task.rank} was in {task.call}, its call {task.calls}")
        self._cut(self.apart)
        for rank, other in permutations(range(len(before)), 2):
            if before[rank] == before[other] and self.apart(rank, other) and other not in self.dead:
                self.scheduler.after(self.weather.noticing(), self._notice, (rank, other))

    def _cut(self, cut: Cut) -> None:
        for tell in self.on_cut:
            tell(cut)

    def apart(self, rank: int, other: int) -> bool:
        """Whether nothing passes between two ranks."""
        return self._parts[rank] != self._parts[other]

    def gone(self, rank: int) -> set[int]:
        """The ranks that are gone for one: killed, or cut off."""
        return self.dead | {other for other in range(len(self._parts)) if self.apart(rank, other)}

    def _notice(self, who: tuple[int, int]) -> None:
        """A rank learns of another's end: what cannot end without that one fails."""
        rank, gone = who
        self.known_dead[rank].add(gone)
        for request in self.pending(rank):
            if gone in request.needs():
                request.finish(MPIError(ERR_PROC_FAILED))
        self.stir(rank)

    def revoke(self, context: Context, rank: int) -> None:
        """Let everybody who is in a communicator learn, sooner or later, that it is of no use any more."""
        if rank not in context.revoked:
            self._revoked((context, rank))
            for other in context.members:
                if not self.apart(rank, other):
                    self.scheduler.after(self.weather.message(), self._revoked, (context, other))

    def _revoked(self, what: tuple[Context, int]) -> None:
        context, rank = what
        if rank not in context.revoked:
            context.revoked.add(rank)
            for request in self.pending(rank):
                if request.context is context:
                    request.undo()
                    request.finish(MPIError(ERR_REVOKED))
            self.stir(rank)

    # ---- for who runs it

    def standstill(self) -> SimulationError | None:
        """The error that tells for what all ranks wait that are left, where nothing can come any more."""
        left = self.scheduler.left()
        if not left:
            return None
        told = "; ".join(self._told(task) for task in left[:8]) + "; ..." * (len(left) > 8)
        return SimulationError(f"the ranks wait for each other for ever: {told}")

    def _told(self, task: Task) -> str:
        """For what a rank waits, and where."""
        operations = [task.wanted] if task.wanted else self.pending(task.rank)
        waits = []
        for operation in operations[:2]:
            others = sorted(operation.needs())
            ended = [other for other in others if self.scheduler.tasks[other].done]
            named = f" for rank{'s' * (len(others) > 1)} {', '.join(map(str, others))}" if others else ""
            waits.append(operation.words + named + " (which came to its end)" * (bool(ended) and ended == others))
        return f"rank {task.rank} in {' and '.join(waits) or task.call}{_place(task)}"


class Context:
    """A communicator as all its ranks have it: its number, and its members by their ranks in the world."""

    def __init__(self, network: Network, members: Iterable[int]):
        self.number = network.next_context()
        self.members = tuple(members)
        self.revoked: set[int] = set()
        """Who knows that it is revoked."""
        self.acknowledged: dict[int, set[int]] = defaultdict(set)
        """Of whose end each rank has said that it knows."""


def _place(task: Task) -> str:
    frame = sys._current_frames().get(task.thread.ident) if task.thread else None
    while frame and (frame.f_code.co_filename.startswith(_COMM) or "threading" in frame.f_code.co_filename):
        frame = frame.f_back
    return f" ({Path(frame.f_code.co_filename).name}:{frame.f_lineno}, {frame.f_code.co_name})" if frame else ""
