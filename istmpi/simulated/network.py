"""The ranks of a simulated job, their faults, and the operations that they begin and wait for."""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from istmpi.errors import SimulationError
from istmpi.simulated.faults import Faults, Timing
from istmpi.simulated.scheduler import FIRST_REST, Ended, Scheduler, Task
from istmpi.units import in_seconds

ANY_SOURCE, ANY_TAG = -1, -1
KILLED = 137
"""The exit code of a job whose rank was killed, as with real launchers."""
_HIDDEN = tuple(str(Path(__file__).parents[1] / room) for room in ("comm", "simulated"))


class Network:
    def __init__(self, ranks: int, faults: Faults):
        self.scheduler = Scheduler(ranks, self.standstill)
        self.timing = Timing(faults)
        self.messages: Counter[str] = Counter()
        self.trace = 0
        self.happened: list[str] = []
        self.dead: set[int] = set()
        self.on_kill: list[Callable[[int], None]] = []
        self._contexts = 0
        self._pending: list[dict[Request, None]] = [{} for _ in range(ranks)]
        self._stops = {(stop.rank, stop.call): stop.seconds for stop in faults.stops}
        self._kills = {kill.rank: kill for kill in faults.kills}

    def next_context(self) -> int:
        self._contexts += 1
        return self._contexts

    # ---- a rank's calls

    def call(self, rank: int, name: str) -> None:
        """Begin a rank's call: virtual time passes, other ranks may run, and faults happen."""
        self.scheduler.tasks[rank].rest = FIRST_REST
        self.poll(rank, name)

    def poll(self, rank: int, name: str) -> None:
        """Begin a call that only polls, which unlike `call` does not shorten the rank's next
        rest."""
        task = self._task(rank)
        task.calls, task.call = task.calls + 1, name
        self.trace = zlib.crc32(f"{rank} {name} {self.scheduler.now!r}".encode(), self.trace)
        seconds = self.timing.call(rank)
        if stopped := self._stops.get((rank, task.calls)):
            self.happened.append(
                f"rank {rank} stopped for {in_seconds(stopped)} in {name}, its call {task.calls}"
            )
            seconds += stopped
        kill = self._kills.get(rank)
        if kill and task.calls >= kill.call + kill.posted:
            self._kill(task)
        self.scheduler.spend(task, seconds)

    def _task(self, rank: int) -> Task:
        task = self.scheduler.tasks[rank]
        if self.scheduler.ending or task.dead:
            raise Ended
        return task

    def begun(self, request: Request) -> Request:
        task = self.scheduler.tasks[request.rank]
        if not request.done:
            self._pending[request.rank][request] = None
        kill = self._kills.get(request.rank)
        if kill and kill.posted and task.calls == kill.call:
            self._kill(task)
        return request

    def wait(self, request: Request) -> None:
        task = self.scheduler.tasks[request.rank]
        while not request.done:
            task.awaited = request
            self.scheduler.pause(task)
        task.awaited = None

    def rest(self, rank: int) -> None:
        self.scheduler.rest_of(self._task(rank))

    # ---- what comes to a rank

    def stir(self, rank: int) -> None:
        task = self.scheduler.tasks[rank]
        task.rest = FIRST_REST
        if task.resting:
            task.resting = False
            self.scheduler.wake(task, self.timing.call(rank))

    def ended(self, request: Request) -> None:
        self._pending[request.rank].pop(request, None)
        task = self.scheduler.tasks[request.rank]
        if task.awaited is request:
            task.awaited = None
            self.scheduler.wake(task, self.timing.call(request.rank))
        self.stir(request.rank)

    def _kill(self, task: Task) -> None:
        task.dead = True
        self.dead.add(task.rank)
        self.happened.append(f"rank {task.rank} was killed in {task.call}, its call {task.calls}")
        for request in list(self._pending[task.rank]):
            request.undo()
        for lose in self.on_kill:
            lose(task.rank)
        end = SimulationError(f"{self.happened[-1]}; the launcher ends the job.")
        end.exit_code = KILLED
        self.scheduler.after(self.timing.noticing(), self.scheduler.end, end)
        self.scheduler.pause(task)

    def standstill(self) -> SimulationError | None:
        left = self.scheduler.left()
        if not left:
            return None
        waits = "; ".join(map(self._wait_of, left[:8])) + "; ..." * (len(left) > 8)
        return SimulationError(f"deadlock, the ranks wait for each other: {waits}")

    def _wait_of(self, task: Task) -> str:
        operations = [task.awaited] if task.awaited else list(self._pending[task.rank])
        waits = []
        for operation in operations[:2]:
            others = sorted(operation.needs())
            ended = [other for other in others if self.scheduler.tasks[other].done]
            names = (
                f" for rank{'s' * (len(others) > 1)} {', '.join(map(str, others))}"
                if others
                else ""
            )
            waits.append(
                operation.words + names + " (which has ended)" * (bool(ended) and ended == others)
            )
        return f"rank {task.rank} in {' and '.join(waits) or task.call}{_place(task)}"


class Context:
    def __init__(self, network: Network, members: Iterable[int]):
        self.number = network.next_context()
        self.members = tuple(members)


def _place(task: Task) -> str:
    frame = sys._current_frames().get(task.thread.ident) if task.thread else None
    while frame and (
        frame.f_code.co_filename.startswith(_HIDDEN) or "threading" in frame.f_code.co_filename
    ):
        frame = frame.f_back
    return (
        f" ({Path(frame.f_code.co_filename).name}:{frame.f_lineno}, {frame.f_code.co_name})"
        if frame
        else ""
    )


# ---- by mpi4py's names


class Status:
    source = tag = -1


class Request:
    """An operation that a rank has begun. Without a network it is MPI's null request."""

    def __init__(self, network: Network | None = None, rank: int = -1, words: str = ""):
        self.network, self.rank, self.words = network, rank, words
        self.done = self.null = network is None
        self.value: Any = None
        self.needs: Callable[[], set[int]] = set
        """A function that returns the world ranks without which the operation cannot end."""
        self.undo: Callable[[], None] = lambda: None

    def finish(self) -> None:
        if not self.done:
            self.done = True
            self.network.ended(self)

    def Test(self) -> bool:
        if not self.null:
            self.network.poll(self.rank, "Test")
            self.null = self.done
        return self.null

    def wait(self) -> Any:
        if not self.null:
            self.network.call(self.rank, "Wait")
            self.network.wait(self)
            self.null = True
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and (self is other or (self.null and other.null))

    def __hash__(self) -> int:
        return id(self)

    @staticmethod
    def Testsome(requests: Sequence[Request]) -> list[int] | None:
        active = [number for number, request in enumerate(requests) if not request.null]
        if not active:
            return None
        requests[active[0]].network.poll(requests[active[0]].rank, "Testsome")
        done = [number for number in active if requests[number].done]
        for number in done:
            requests[number].null = True
        return done


class Group:
    def __init__(self, members: Sequence[int]):
        self.members = tuple(members)

    def Incl(self, ranks: Sequence[int]) -> Group:
        return Group([self.members[rank] for rank in ranks])

    def Translate_ranks(self, ranks: Sequence[int], group: Group) -> list[int]:
        return [group.members.index(self.members[rank]) for rank in ranks]

    def Free(self) -> None:
        """Do nothing: a group has no memory to free."""
