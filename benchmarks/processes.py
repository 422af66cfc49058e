"""Processes for cells of simulated ranks."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def a_process_a_core() -> ProcessPoolExecutor:
    """As many processes as this one may use cores, with nothing of its threads."""
    return ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn"))
