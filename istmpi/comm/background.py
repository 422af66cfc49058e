"""Communication in a thread while the caller computes."""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from istmpi.comm import mpi


class BackgroundRunner:
    """Runs pieces of work in order.

    They run in a thread if threads may call MPI, otherwise all of them in `finish`. Until a piece
    is done, nothing else may use its communicator.
    """

    def __init__(self, name: str):
        self._name = name
        self._thread: threading.Thread | None = None
        self._pieces: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._failure: BaseException | None = None
        self.seconds = 0.0
        """The seconds that all pieces took, also those in the thread."""

    def put(self, work: Callable[[], None]) -> None:
        """Add a piece of work, which begins once the previous piece is done."""
        self._pieces.put(work)
        if not self._thread and mpi.threads_may_call():
            self._thread = threading.Thread(target=self._do_pieces, name=self._name, daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait until all pieces are done.

        Raises the error of the first piece that failed; later ones are skipped.
        """
        # None ends the thread after the pieces that were put before.
        self._pieces.put(None)
        if self._thread:
            self._thread.join()
        else:
            self._do_pieces()
        self._thread = None
        if self._failure:
            raise self._failure

    def _do_pieces(self) -> None:
        """Do the pieces in their order, until `finish` has put an end to them."""
        while True:
            work = self._pieces.get()
            if work is None:  # from `finish`
                return
            began = time.perf_counter()
            try:
                # After a failure the next pieces would send what does not exist.
                if not self._failure:
                    work()
            except BaseException as failure:  # `finish` raises it
                self._failure = failure
            self.seconds += time.perf_counter() - began
