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

ANY_SOURCE = -1
ANY_TAG = -1
KILLED = 137
"""The exit code of a job whose rank was killed, as with real launchers."""
_HIDDEN = tuple(str(Path(__file__).parents[1] / room) for room in ("comm", "simulated"))
"""Folders whose lines do not say where a program waits."""


class Network:
    def __init__(self, ranks: int, faults: Faults):
        self.scheduler = Scheduler(ranks, self.explain_standstill)
        self.timing = Timing(faults)
        self.messages: Counter[str] = Counter()
        self.trace = 0
        self.happened: list[str] = []
        self.dead: set[int] = set()
        self.on_kill: list[Callable[[int], None]] = []
        self._contexts = 0
        # Dictionaries, not sets: a set's order would depend on addresses, not on the seed.
        self._pending: list[dict[Operation, None]] = [{} for _ in range(ranks)]
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
        """Begin a call that only polls: unlike `call`, it does not shorten the next rest."""
        task = self._require_running(rank)
        task.calls += 1
        task.call = name
        self.trace = zlib.crc32(f"{rank} {name} {self.scheduler.now!r}".encode(), self.trace)
        seconds = self.timing.call_seconds(rank)
        stop = self._stops.get((rank, task.calls))
        if stop:
            self.happened.append(
                f"rank {rank} stopped for {in_seconds(stop)} in {name}, its call {task.calls}"
            )
            seconds += stop
        kill = self._kills.get(rank)
        # A kill after the operation is posted comes in `begin`; if its call posted nothing, here.
        if kill and task.calls >= kill.call + kill.posted:
            self._kill(task)
        self.scheduler.spend(task, seconds)

    def _require_running(self, rank: int) -> Task:
        """Return a rank's task; raise Ended, which ends its thread, if it is dead."""
        task = self.scheduler.tasks[rank]
        if self.scheduler.ending or task.dead:
            raise Ended
        return task

    def begin(self, request: Operation) -> Operation:
        """Record an operation that a rank has posted, and return it."""
        task = self.scheduler.tasks[request.rank]
        if not request.done:
            self._pending[request.rank][request] = None
        kill = self._kills.get(request.rank)
        if kill and kill.posted and task.calls == kill.call:
            self._kill(task)
        return request

    def wait(self, request: Operation) -> None:
        task = self.scheduler.tasks[request.rank]
        # A loop, because other events also wake the task.
        while not request.done:
            task.awaited = request
            self.scheduler.pause(task)
        task.awaited = None

    def rest(self, rank: int) -> None:
        self.scheduler.rest(self._require_running(rank))

    # ---- what comes to a rank

    def stir(self, rank: int) -> None:
        """Wake a rank that rests between two polls, for something has come for it."""
        task = self.scheduler.tasks[rank]
        task.rest = FIRST_REST
        if task.resting:
            task.resting = False
            self.scheduler.wake(task, self.timing.call_seconds(rank))

    def end(self, request: Operation) -> None:
        """Take a finished operation from the list of pending ones, and wake its rank."""
        self._pending[request.rank].pop(request, None)
        task = self.scheduler.tasks[request.rank]
        if task.awaited is request:
            task.awaited = None
            self.scheduler.wake(task, self.timing.call_seconds(request.rank))
        self.stir(request.rank)

    def _kill(self, task: Task) -> None:
        """Kill a rank: it never runs again, and the launcher ends the job a little later."""
        task.dead = True
        self.dead.add(task.rank)
        self.happened.append(f"rank {task.rank} was killed in {task.call}, its call {task.calls}")
        for request in list(self._pending[task.rank]):
            request.undo()
        for lose in self.on_kill:
            lose(task.rank)
        end = SimulationError(f"{self.happened[-1]}; the launcher ends the job.")
        end.exit_code = KILLED
        self.scheduler.after(self.timing.notice_seconds(), self.scheduler.end, end)
        # decision 50: the thread stays, for unwinding would run what a killed process never runs.
        self.scheduler.pause(task)

    # ---- the words of a deadlock

    def explain_standstill(self) -> SimulationError | None:
        """Return the error of a job whose ranks all wait; None if all ranks have ended."""
        waiting = self.scheduler.list_unfinished()
        if not waiting:
            return None
        waits = "; ".join(map(self._describe_wait, waiting[:8]))
        if len(waiting) > 8:
            waits += "; ..."
        return SimulationError(f"deadlock, the ranks wait for each other: {waits}")

    def _describe_wait(self, task: Task) -> str:
        operations = [task.awaited] if task.awaited else list(self._pending[task.rank])
        waits = [self._describe(operation) for operation in operations[:2]]
        return f"rank {task.rank} in {' and '.join(waits) or task.call}{_place(task)}"

    def _describe(self, operation: Operation) -> str:
        words = operation.words
        ranks = sorted(operation.needs())
        if not ranks:
            return words
        noun = "rank" if len(ranks) == 1 else "ranks"
        words += f" for {noun} {', '.join(map(str, ranks))}"
        if all(self.scheduler.tasks[rank].done for rank in ranks):
            words += " (which has ended)"
        return words


class Context:
    def __init__(self, network: Network, members: Iterable[int]):
        self.number = network.next_context()
        self.members = tuple(members)


def _place(task: Task) -> str:
    """Return the file, line and function in which a task's program waits."""
    if task.thread is None or task.thread.ident is None:
        return ""
    frame = sys._current_frames().get(task.thread.ident)
    while frame and _is_hidden(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    code = frame.f_code
    return f" ({Path(code.co_filename).name}:{frame.f_lineno}, {code.co_name})"


def _is_hidden(file: str) -> bool:
    return file.startswith(_HIDDEN) or "threading" in file


# ---- by mpi4py's names


class Status:
    source = tag = -1


class Request:
    """MPI's null request, which has ended; the base of `Operation`."""

    null = True

    def Test(self) -> bool:
        return True

    def wait(self) -> Any:
        return None

    def __eq__(self, other: object) -> bool:
        # As in mpi4py, where every ended request equals REQUEST_NULL.
        return isinstance(other, Request) and (self is other or (self.null and other.null))

    def __hash__(self) -> int:
        return id(self)

    @staticmethod
    def Testsome(requests: Sequence[Request]) -> list[int] | None:
        active: dict[int, Operation] = {}
        for number, request in enumerate(requests):
            if isinstance(request, Operation) and not request.null:
                active[number] = request
        if not active:
            return None
        first = next(iter(active.values()))
        first.network.poll(first.rank, "Testsome")
        done = [number for number, request in active.items() if request.done]
        for number in done:
            active[number].null = True
        return done


class Operation(Request):
    """An operation that a rank has begun. It becomes a null request once its rank saw its end."""

    def __init__(self, network: Network, rank: int, words: str):
        self.network = network
        self.rank = rank
        self.words = words
        self.done = False
        self.null = False
        self.value: Any = None
        self.needs: Callable[[], set[int]] = set
        """A function that returns the world ranks without which the operation cannot end."""
        self.undo: Callable[[], None] = lambda: None
        """A function that withdraws the operation of a killed rank."""

    def finish(self) -> None:
        if not self.done:
            self.done = True
            self.network.end(self)

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


class Group:
    def __init__(self, members: Sequence[int]):
        self.members = tuple(members)

    def Incl(self, ranks: Sequence[int]) -> Group:
        return Group([self.members[rank] for rank in ranks])

    def Free(self) -> None:
        """Do nothing: a group has no memory to free."""
