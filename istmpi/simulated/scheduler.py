"""The scheduler of simulated ranks, which are threads, in virtual time.

One runs until it calls MPI, then the next (decision 50).

One list has all future events by their times, and the running thread carries them out. The order
therefore follows from the times alone. Ranks that still wait when the list is empty are in a
deadlock.
"""

import heapq
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

FIRST_REST = 25e-6
"""The virtual seconds of a rank's first rest between two polls."""
REST_GROWS = 1.5
"""The factor from a rest to the next one, until something happens."""
LONGEST_REST = 1e5
"""The longest rest in virtual seconds. After it, a rank sleeps until something arrives."""


class Ended(BaseException):
    """Raised in a rank's thread to end it: the rank was killed, or the job is over."""


class Task:
    def __init__(self, rank: int):
        self.rank = rank
        self.calls = 0
        self.call = ""
        self.done = False
        self.dead = False
        self.resting = False
        self.awaited: Any = None
        self.thread: threading.Thread | None = None
        # The thread runs while it has the baton; it acquires the lock to wait for its turn.
        self.baton = threading.Lock()
        self.baton.acquire()
        self.ticket = 0
        """The number of the task's valid turn; turns with earlier numbers are cancelled."""
        self.rest = FIRST_REST


class Scheduler:
    def __init__(self, ranks: int, explain_standstill: Callable[[], BaseException | None]):
        """``explain_standstill`` is called if no event is left.

        It returns the error, or None if all ranks have ended.
        """
        self._explain_standstill = explain_standstill
        self.tasks = [Task(rank) for rank in range(ranks)]
        self.now = 0.0
        self.switches = 0
        self.ending = False
        self.verdict: BaseException | None = None
        self.ended_by: int | None = None
        self._list: list[tuple[float, int, Callable[[Any], None] | None, Any]] = []
        """A heap of events: time, number, action and its subject. Without an action, an event is
        the turn of a task with a ticket."""
        # Numbers decide between events of one time, so that the order never rests on addresses.
        self._number = 0
        self._over = threading.Lock()
        self._over.acquire()

    def after(self, seconds: float, action: Callable[[Any], None], subject: Any = None) -> None:
        self.at(self.now + seconds, action, subject)

    def at(self, when: float, action: Callable[[Any], None] | None, subject: Any = None) -> None:
        self._number += 1
        # decision 50: one task runs at a time, so a seed decides the order of all events.
        heapq.heappush(self._list, (when, self._number, action, subject))

    def wake(self, task: Task, seconds: float) -> None:
        """Schedule a task's next turn in ``seconds``, in place of its earlier turn."""
        task.ticket += 1
        self.at(self.now + seconds, None, (task, task.ticket))

    def end(self, verdict: BaseException, rank: int | None = None) -> None:
        """End the job with an error, which a rank's program may have raised; the first counts."""
        if self.verdict is None:
            self.verdict = verdict
            self.ended_by = rank

    # ---- for the task that has the baton

    def spend(self, task: Task, seconds: float) -> None:
        when = self.now + seconds
        # Most calls end here: no other thread has a turn before this one, so none must wake.
        if self.verdict is None and (not self._list or self._list[0][0] > when):
            self.now = when
            return
        self.wake(task, seconds)
        self.pause(task)

    def rest(self, task: Task) -> None:
        """Pause a task for a rest, which is longer than the one before."""
        task.resting = True
        task.ticket += 1
        # After the longest rest there is no turn: only `Network.stir` wakes the task.
        if task.rest < LONGEST_REST:
            self.at(self.now + task.rest, None, (task, task.ticket))
            task.rest *= REST_GROWS
        self.pause(task)
        task.resting = False

    def pause(self, task: Task) -> None:
        """Let other tasks run until this task has its turn."""
        following = self._run_events()
        if following is task:
            return
        # All threads share torch's generator; each rank must find it as it left it.
        state = _global_random()
        self._hand_to(following)
        task.baton.acquire()
        if self.ending:
            raise Ended
        _set_global_random(state)

    def _run_events(self) -> Task | None:
        """Run all events before the next turn, and return its task; None if the job is over."""
        while self._list and self.verdict is None:
            when, _, action, subject = heapq.heappop(self._list)
            if action is not None:
                self.now = when
                action(subject)
                continue
            task, ticket = subject
            if task.ticket == ticket:
                self.now = when
                return task
        if self.verdict is None:
            self.verdict = self._explain_standstill()
        return None

    def _hand_to(self, task: Task | None) -> None:
        self.switches += 1
        baton = task.baton if task else self._over
        baton.release()

    # ---- for the thread that runs all

    def run(self, work: Callable[[Task], None]) -> None:
        """Run ``work`` for each task in a thread, until all have ended or an error ends the job."""
        for task in self.tasks:
            task.thread = threading.Thread(
                target=self._live, args=(task, work), name=f"rank {task.rank}", daemon=True
            )
            task.thread.start()
            self.wake(task, 0.0)
        before = _global_random()
        try:
            self._hand_to(self._run_events())
            self._wait_for_the_end()
        finally:
            self._unwind()
            _set_global_random(before)

    def _wait_for_the_end(self) -> None:
        try:
            self._over.acquire()
        except BaseException as interruption:
            # A signal in the main thread; it acts at the running rank's next call.
            self.end(interruption)
            self._over.acquire()
            raise

    def _unwind(self) -> None:
        self.ending = True
        for task in self.tasks:
            if not task.done:
                task.baton.release()
            if task.thread:
                task.thread.join()

    def _live(self, task: Task, work: Callable[[Task], None]) -> None:
        """Run a task's work in its thread, from its first turn on."""
        task.baton.acquire()
        if not self.ending:
            # Each rank begins with the generator of a new process.
            _set_global_random(None)
            try:
                work(task)
            except Ended:
                pass
        task.done = True
        if not self.ending:
            self._hand_to(self._run_events())

    def list_unfinished(self) -> Sequence[Task]:
        return [task for task in self.tasks if not (task.done or task.dead)]


def _global_random() -> Any:
    # A program without torch must not wait for its import.
    torch = sys.modules.get("torch")
    return torch.get_rng_state() if torch else None


def _set_global_random(state: Any) -> None:
    """Set torch's generator to a state, or to that of a new process if it is None."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if state is None:
        state = torch.Generator().get_state()
    torch.set_rng_state(state)
