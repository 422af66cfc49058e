"""Takes signals to this process as requests to stop, from the first call of `receiver` on."""

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import cache

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)

_SAME_REQUEST = 0.5
"""Seconds in which a second signal counts as the same request: a terminal and a launcher may both
pass on a Ctrl-C."""


class Receiver:
    """Takes the process's signals.

    The first is a request; a later SIGTERM or Ctrl-C ends the process at once. A thread receives
    the signals, because the main thread may be waiting inside MPI. Get the object from `receiver`,
    first in the main thread.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._first: float | None = None
        self._untold = ""
        self._tell: Callable[[str], None] | None = None
        receiving, sending = os.pipe()
        os.set_blocking(sending, False)
        # The pipe first: a handler alone would swallow a signal.
        signal.set_wakeup_fd(sending, warn_on_full_buffer=False)
        for number in SIGNALS:
            # A handler must be set, or the signal's default ends the process.
            signal.signal(number, lambda *_: None)
            # MPI and HDF5 do not expect a call that is interrupted.
            signal.siginterrupt(number, False)
        threading.Thread(target=self._receive, args=(receiving,), daemon=True).start()

    def listen(self, tell: Callable[[str], None]) -> None:
        """Call ``tell`` with the next signal's name, or at once with an unreported one's."""
        with self._changing:
            self._tell = tell
            if self._untold:
                tell(self._untold)
                self._untold = ""
            else:
                self._first = None

    def _receive(self, pipe: int) -> None:
        while True:
            [number] = os.read(pipe, 1)
            if number in SIGNALS:
                with self._changing:
                    self._take(number, time.monotonic())

    def _take(self, number: int, now: float) -> None:
        if self._first is None:
            self._first = now
            name = signal.Signals(number).name
            if self._tell:
                self._tell(name)
            else:
                self._untold = name
            return
        ends = number in (signal.SIGTERM, signal.SIGINT)
        if ends and now - self._first > _SAME_REQUEST:
            # The main thread may be waiting inside MPI, where no exception reaches it.
            os._exit(128 + number)


@cache
def receiver() -> Receiver:
    """Return this process's only receiver. The first call creates it."""
    return Receiver()
