"""The live view of a run on a terminal: a bar, and beneath it what its width has room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import progress as bars
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from istmpi.report.units import number, size

if TYPE_CHECKING:
    from istmpi.training.progress import Progress

LONGEST_ROUNDS = 4 * 3600.0
"""Seconds that have two rounds in them, from which the time left is known."""


class LiveView:
    """Shows a run of so many rounds, on the ranks of these hosts, until it is stopped."""

    def __init__(self, console: Console, rounds: int, hosts: Sequence[str], title: str = "round"):
        self._console, self._hosts = console, hosts
        columns = (
            bars.TextColumn("{task.description}", markup=False),
            bars.MofNCompleteColumn(),
            bars.BarColumn(bar_width=None),
        )
        times = (
            bars.TimeElapsedColumn(),
            bars.TextColumn("+"),
            bars.TimeRemainingColumn(),
        )
        self._bar = bars.Progress(*columns, *times, console=console, speed_estimate_period=LONGEST_ROUNDS)
        self._task = self._bar.add_task(title, total=rounds)
        self._figures: list[str] = []
        self._score = ""
        self._live = Live(console=console, get_renderable=self.view, transient=True)

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def progressed(self, progress: Progress) -> None:
        """A round is done."""
        self._bar.update(self._task, completed=progress.round)
        if scored := progress.validation or progress.score:
            self._score = f"{progress.score_name} {scored.score:.4f}"
        self._figures = [f"loss {progress.loss:.4f}", *([self._score] if self._score else ())]
        last = progress.last_round
        if last and last.rates:
            examples, sent = last.rates
            self._figures.append(f"{number(examples)} examples/s")
            if len(self._hosts) > 1:
                self._figures.append(f"{size(sent)}/s")
        if self._score:
            self._figures.append(f"evaluate {progress.evaluating:.0%}")
        if progress.slowest:
            self._figures.append(str(progress.slowest))

    def view(self) -> Group:
        """The bar and the figures."""
        return Group(self._bar.get_renderable(), Text(fitting(self._figures, self._console.width)))


def fitting(figures: Sequence[str], width: int) -> str:
    """As many of these as a line of that width has room for, whole ones, the first first."""
    line = ""
    for figure in filter(None, figures):
        longer = f"{line}  {figure}" if line else figure
        if cell_len(longer) <= width:
            line = longer
    return line
