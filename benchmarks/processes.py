"""Processes for cells of simulated ranks."""

import argparse
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from benchmarks.reporting import RESULTS
from istmpi.environment import list_cores


def cells_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of a program that runs cells and reports on them."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, required=True, help="the folder of the cells and the prepared data")
    parser.add_argument("--minutes", type=float, default=600, help="no cell begins after that")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the report goes")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    return parser


def worker_processes(count: int | None = None) -> ProcessPoolExecutor:
    """So many processes, or one a core, with none of this one's threads; killed or not, they end when it does."""
    return ProcessPoolExecutor(count or len(list_cores()), get_context("spawn"), initializer=_end_with_the_parent)


def run_cells(
    todo: Callable[[], Iterable[Any]],
    work: Callable[[Any, Path, float], str],
    folder: Path,
    minutes: float,
    count: int | None = None,
) -> None:
    """Run ``work(cell, folder, end)`` for the cells to do, as many at a time as processes, until none is left.

    Prints the line that each returns. No cell begins after so many minutes: ``end``, by `time.perf_counter`.
    """
    end = time.perf_counter() + 60 * minutes
    with worker_processes(count) as processes:
        while (cells := list(todo())) and time.perf_counter() < end:
            for running in [processes.submit(work, cell, folder, end) for cell in cells]:
                if line := running.result():
                    print(line, flush=True)


def _end_with_the_parent() -> None:
    def watch() -> None:
        parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
