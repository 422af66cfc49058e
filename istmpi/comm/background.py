"""Communication that a thread does while the caller computes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from istmpi.comm import mpi


class BackgroundRunner:
    """Does pieces of work one after the other: in a thread where threads may call MPI, else all of them in `finish`.

    A piece needs a communicator on which nothing else goes on meanwhile.
    """

    def __init__(self, name: str):
        self._name = name
        self._thread: threading.Thread | None = None
        self._deferred: list[Callable[[], None]] = []
        self._failure: BaseException | None = None
        self.seconds = 0.0

    def put(self, work: Callable[[], None]) -> None:
        if not mpi.threads_may_call():
            self._deferred.append(work)
            return
        self._thread = threading.Thread(target=self._do, args=(work, self._thread), name=self._name, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until all of it is done; raise the first error of a piece."""
        if self._thread:
            self._thread.join()
        for work in self._deferred:
            self._do(work)
        self._thread, self._deferred = None, []
        if self._failure:
            raise self._failure

    def _do(self, work: Callable[[], None], before: threading.Thread | None = None) -> None:
        if before:
            before.join()
        if self._failure:
            return
        began = time.perf_counter()
        try:
            work()
        except BaseException as failure:  # raised where the work is waited for
            self._failure = failure
        self.seconds += time.perf_counter() - began
