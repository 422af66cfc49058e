"""Processes for cells of simulated ranks."""

import os
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process

from istmpi.devices import usable_cores


def worker_processes(count: int | None = None) -> ProcessPoolExecutor:
    """So many processes, or one a core, with none of this one's threads; killed or not, they end when it does."""
    return ProcessPoolExecutor(count or len(usable_cores()), get_context("spawn"), initializer=_end_with_the_parent)


def _end_with_the_parent() -> None:
    def watch() -> None:
        parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
