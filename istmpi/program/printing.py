"""The lines, the bar and the picture of a user's program about its run."""

import sys
from math import isnan
from pathlib import Path
from typing import Any
from weakref import WeakMethod

from rich import progress as bars
from rich.console import Console

from istmpi.comm import terminal_columns
from istmpi.comm.leaving import at_the_end
from istmpi.errors import IstmpiError
from istmpi.foreign import one_line
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.watch import Summary, Watch
from istmpi.units import counted


class Pictures:
    """The folders of finished runs, whose progress.png this process draws when its script ends."""

    def __init__(self) -> None:
        self.folders: dict[Path, None] = {}

    def draw(self) -> None:
        for folder in self.folders:
            try:
                # A program without a finished run needs no matplotlib.
                from istmpi.report import plots

                plots.draw(folder)
            except ImportError:
                return
            except IstmpiError as error:
                print(f"istmpi: no progress.png: {one_line(error)}", flush=True)


PICTURES = Pictures()
at_the_end.append(WeakMethod(PICTURES.draw))


class Printing(Watch):
    """A watch that prints messages, and a line after each tenth of the rounds and after each score.

    A terminal also gets a bar below these lines.
    """

    def __init__(self) -> None:
        columns = terminal_columns()
        self._bar: bars.Progress | None = None
        if columns or sys.stderr.isatty():
            self._bar = _make_bar(columns)

    def started(self, training: Training, folder: Any, saver: Any) -> None:
        run = training.run
        self._every = max(run.train.rounds // 10, 1)
        if self._bar:
            self._task = self._bar.add_task("round", total=run.train.rounds)
            self._bar.start()
        ranks = counted(training.communicator.size, "rank")
        if training.group:
            ranks += f" ({training.group.membership.in_words})"
        self.noticed(f"{run.name} in {folder.path}, {run.method.name} on {ranks}")
        network = training.architecture
        dealt = training.method.spec.groups(run, network)
        if dealt:
            rest = (name for name in network.groups if name not in dealt)
            undealt = dict.fromkeys(rest, "only if partition= names it")
            undealt.update(network.table.undealt)
            words = "dealt out: " + ", ".join(f"{name} ({network.lengths[name]})" for name in dealt)
            if undealt:
                whole = "; ".join(f"{name} ({reason})" for name, reason in undealt.items())
                words += f"; not dealt out: {whole}"
            self.noticed(words)

    def progressed(self, progress: Progress) -> None:
        if self._bar:
            self._bar.update(self._task, completed=progress.round)
        if progress.round % self._every == 0 or progress.score:
            # A loop that takes its steps by hand may not note a loss.
            loss = "no loss" if isnan(progress.loss) else f"loss {progress.loss:.4g}"
            self.noticed(f"round {progress.round}: {loss}{_scores(progress)}")

    def finished(self, summary: Summary) -> None:
        last = summary.last
        PICTURES.folders[summary.folder] = None
        self.noticed(
            f"{counted(last.round, 'round')} in {last.seconds:.0f} s, {last.bytes / 1e6:.3g} MB "
            f"sent{_scores(last)}"
        )

    def stop(self) -> None:
        """Take the bar away; later messages are plain lines."""
        if self._bar:
            self._bar.stop()

    def noticed(self, message: str) -> None:
        line = f"istmpi: {one_line(message)}"
        if self._bar and self._bar.live.is_started:
            # A print would write into the bar.
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, flush=True)


def _make_bar(columns: int | None) -> bars.Progress:
    """Make a bar on the terminal of mpirun, which has so many ``columns``, or of this process."""
    console = Console(stderr=not columns, force_terminal=True, width=columns)
    return bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.MofNCompleteColumn(),
        bars.BarColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("+"),
        bars.TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def _scores(progress: Progress) -> str:
    score = progress.score
    if not score:
        return ""
    values = {progress.score_name: score.score, **(score.more or {})}
    return "".join(f", {name} {value:.4g}" for name, value in values.items())
