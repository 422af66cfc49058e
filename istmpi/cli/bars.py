"""Progress of work that is no training: a bar on a terminal, a line now and then in a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from istmpi.report.units import size

SECONDS_BETWEEN_LINES = 10

Report = Callable[[str, int, int], None]
"""Called as ``report(stage, done, total)``, often."""


@contextmanager
def progress(console: Console, in_bytes: bool = False) -> Iterator[Report]:
    """A callback for the library."""
    if not console.is_terminal:
        yield _Lines(console, in_bytes)
        return
    count = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = TextColumn("{task.description}", markup=False), BarColumn(), count, TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def update(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total)

        yield update


class _Lines:
    """Progress for a log file: silent at first, then a line every few seconds."""

    def __init__(self, console: Console, in_bytes: bool):
        self._console = console
        self._text = size if in_bytes else "{:,}".format
        self._next = time.monotonic() + SECONDS_BETWEEN_LINES

    def __call__(self, stage: str, done: int, total: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + SECONDS_BETWEEN_LINES
            self._console.print(f"{stage} {self._text(done)} of {self._text(total)}", highlight=False, markup=False)
