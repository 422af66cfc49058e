"""The time that this rank spends in each phase."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager


class Clock:
    """Measures this rank's seconds in each phase: ``with clock("pull"): ...``.

    Outer phases exclude inner phases.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.background = 0.0
        """Seconds in which a thread sent data. A phase that waits for the thread counts the waiting
        time, too."""
        self.followers: list[Callable[[str], AbstractContextManager]] = []
        """Functions of a phase's name. Each returns a context manager that is entered and left with
        the phase."""
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self._lap()
        self._running.append(phase)
        try:
            with ExitStack() as followed:
                for follower in self.followers:
                    followed.enter_context(follower(phase))
                yield
        finally:
            self._lap()
            self._running.pop()

    def since(self, earlier: Mapping[str, float]) -> dict[str, float]:
        """Return each phase's seconds since ``earlier``, a copy of `seconds`.

        Phases that took no time are left out.
        """
        spent = {
            phase: seconds - earlier.get(phase, 0.0) for phase, seconds in self.seconds.items()
        }
        return {phase: seconds for phase, seconds in spent.items() if seconds > 0}

    def _lap(self) -> None:
        # The time since the last change belongs to the innermost phase alone.
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now
