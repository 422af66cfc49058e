"""Processes for cells of simulated ranks."""

import os
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process


def a_process_a_core() -> ProcessPoolExecutor:
    """As many processes as this one may use cores, with none of its threads; killed or not, they end when it does."""
    return ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn"), _end_with_the_parent)


def _end_with_the_parent() -> None:
    def watch() -> None:
        parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
