"""The time that this rank spends in each phase."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager


class Clock:
    """Seconds by phase of this rank: ``with clock("pull"): ...``. A phase inside another is taken out of it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.background = 0.0
        """Seconds of sending by a thread, beside these phases or waited for in one of them."""
        self.followers: list[Callable[[str], AbstractContextManager]] = []
        """Each makes of a phase's name what is entered and left with it."""
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
        """Seconds of each phase that there was since ``seconds`` were these."""
        spent = {phase: seconds - earlier.get(phase, 0.0) for phase, seconds in self.seconds.items()}
        return {phase: seconds for phase, seconds in spent.items() if seconds > 0}

    def _lap(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now
