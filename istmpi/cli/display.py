"""Shows a run on the terminal of rank 0: a banner, a live bar or plain lines, and the outcome."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import progress as bars
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from istmpi import comm
from istmpi.checkpoint.saver import Saver
from istmpi.cli.output import SECONDS_BETWEEN_LINES, console
from istmpi.cli.run_facts import banner, outcome, round_line
from istmpi.cli.run_options import Showing
from istmpi.errors import IstmpiError
from istmpi.foreign import one_line, reason
from istmpi.record import SUMMARY, RunFolder
from istmpi.report import plots
from istmpi.report.tables import head_text, plain
from istmpi.training.comparison import ComparisonWatch, Turn
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.watch import Summary, Watch
from istmpi.units import duration, number, size

LONGEST_ROUNDS = 4 * 3600.0
"""The seconds over which the bar estimates its speed."""


class LiveView:
    """A bar of the rounds, and a line with the figures of the last round."""

    def __init__(self, console: Console, rounds: int, hosts: Sequence[str], title: str = "round"):
        self._console = console
        self._several = len(hosts) > 1
        self._score = ""
        self._line = ""
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.MofNCompleteColumn(),
            bars.BarColumn(bar_width=None),
            bars.TimeElapsedColumn(),
            bars.TextColumn("+"),
            bars.TimeRemainingColumn(),
            console=console,
            speed_estimate_period=LONGEST_ROUNDS,
        )
        self._task = self._bar.add_task(one_line(title), total=rounds)
        self._live = Live(console=console, get_renderable=self.view, transient=True)
        self.start = self._live.start
        self.stop = self._live.stop

    def progressed(self, progress: Progress) -> None:
        self._bar.update(self._task, completed=progress.round)
        scored = progress.validation or progress.score
        if scored:
            self._score = f"{one_line(progress.score_name)} {scored.score:.4f}"
        # The first figures that fit into the terminal's line are shown.
        self._line = ""
        for figure in self._figures(progress):
            longer = f"{self._line}  {figure}".lstrip()
            if cell_len(longer) <= self._console.width:
                self._line = longer

    def _figures(self, progress: Progress) -> list[str]:
        figures = [f"loss {progress.loss:.4f}"]
        if self._score:
            figures.append(self._score)
        last = progress.last_round
        if last and last.rates:
            examples, sent = last.rates
            figures.append(f"{number(examples)} examples/s")
            # Ranks of one host send nothing over a network.
            if self._several:
                figures.append(f"{size(sent)}/s")
        if self._score:
            figures.append(f"evaluate {progress.evaluating:.0%}")
        if progress.slowest:
            figures.append(str(progress.slowest))
        return figures

    def view(self) -> Group:
        return Group(self._bar.get_renderable(), Text(self._line))


class TrainingDisplay(Watch):
    """Follows one run on the console.

    Leaving the ``with`` block gives a terminal its cursor back.
    """

    every_evaluation = True

    def __init__(self, showing: Showing | None = None) -> None:
        showing = showing or Showing()
        self._showing = showing
        # Under mpirun a rank's own output tells nothing: MPICH gives it a pipe, Open MPI a
        # terminal, in any case.
        columns = comm.terminal_columns()
        self._terminal = columns is not None or (sys.stdout.isatty() and sys.stderr.isatty())
        self._way = showing.progress or ("bar" if self._terminal else "lines")
        self._console = console(
            soft_wrap=not self._terminal,
            force_terminal=self._terminal or bool(os.environ.get("FORCE_COLOR")),
            width=columns or None,
            stderr=showing.as_json,
            quiet=showing.quiet,
        )
        self._view: LiveView | None = None
        self._to_draw: Path | None = None
        self.ended: Path | None = None
        """The folder of the run, once it is trained to its end."""
        self._line_at = 0.0
        self._begun = time.monotonic()

    def __enter__(self) -> "TrainingDisplay":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_view()

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        facts = banner(training, folder, saver)
        self._print_facts(facts)
        # -q hides the banner, but no warning.
        if self._showing.quiet and "widths" in facts:
            self.noticed(f"warning: {facts['widths']}")
        self._follow(training)

    def _follow(self, training: Training, title: str = "round") -> None:
        self._rounds = training.course.rounds
        self._begun = time.monotonic()
        if self._way == "bar" and not self._showing.quiet:
            self._view = LiveView(self._console, self._rounds, training.hosts, title)
            self._view.start()

    def progressed(self, progress: Progress) -> None:
        if self._view:
            self._view.progressed(progress)
        now = time.monotonic()
        # A bar moves by itself; lines show from time to time that the run is alive.
        late = not self._view and now - self._line_at >= SECONDS_BETWEEN_LINES
        evaluated = bool(progress.score or progress.validation)
        due = late or self._showing.verbose or (evaluated and self.every_evaluation)
        if due and self._way != "none":
            self._line_at = now
            line = round_line(progress, self._rounds, self._showing.verbose)
            self._console.print(line, markup=False)

    def noticed(self, message: str) -> None:
        if self._showing.quiet:
            # The console prints nothing with -q.
            print(one_line(message), file=sys.stderr, flush=True)
        else:
            self._console.print(one_line(message), markup=False)

    def finished(self, summary: Summary) -> None:
        self._stop_view()
        # The time of imports, data and network, before the first round.
        loading = self._begun - self._showing.since
        elapsed = time.monotonic() - self._begun
        self._print_facts(outcome(summary, self._rounds, loading, elapsed))
        self._print_summary(summary.folder)
        self._to_draw = summary.folder
        self.ended = summary.folder

    def already_finished(self, folder: RunFolder) -> None:
        self._print_summary(folder.path)
        self.ended = folder.path
        # The earlier job may have ended before it drew.
        if plots.needs_drawing(folder.path):
            self._to_draw = folder.path

    def _print_summary(self, folder: Path) -> None:
        if self._showing.as_json:
            print((folder / SUMMARY).read_text(), end="", flush=True)

    def _stop_view(self) -> None:
        if self._view:
            self._view.stop()
            self._view = None

    def plots(self) -> None:
        """Draw the run's pictures.

        The run is saved by now, so a picture that fails is a line and no error.
        """
        if not self._to_draw:
            return
        try:
            drawn = str(plots.draw(self._to_draw))
        except ImportError:
            drawn = "none: matplotlib is not installed (pip install 'istmpi[plots]')"
        except IstmpiError as error:
            drawn = f"none: {error}"
        except Exception as error:
            # Of any kind: matplotlib reads the user's fonts, caches and settings.
            drawn = f"none: {reason(error)}"
        self._print_facts({"plots": drawn})

    def predicted(self, file: Path) -> None:
        self._print_facts({"answers": str(file)})

    def _print_facts(self, facts: Mapping[str, str]) -> None:
        table = Table.grid(padding=(0, 1))
        table.add_column(min_width=10, no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for name, fact in facts.items():
            table.add_row(one_line(name), one_line(fact))
            if not self._terminal:  # no line is broken in a log
                self._console.print(head_text(f"{one_line(name):<10}", f" {one_line(fact)}"))
        if self._terminal:
            self._console.print(table)


class ComparisonDisplay(ComparisonWatch, TrainingDisplay):
    every_evaluation = False
    _introduced = False

    def begun(self, turn: Turn, number: int, count: int) -> None:
        self._heading = f"{number}/{count} {turn.name}, seed {turn.seed}"
        self._console.print(plain(self._heading, "bold"))

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        if not self._introduced:
            facts = banner(training, folder, saver)
            common = ("MPI", "ranks", "compute", "data", "network")
            self._print_facts({name: facts[name] for name in common})
            self._introduced = True
        self._line_at = time.monotonic()
        self._follow(training, self._heading)

    def trying(self, turn: Turn, values: str, rounds: int) -> None:
        self._stop_view()
        self._heading = f"trying {turn.name}, {values}, to round {rounds}"
        self._console.print(plain(self._heading, "bold"))

    def chose(self, name: str, values: str) -> None:
        self._stop_view()
        self._console.print(head_text(f"{name}:", f" {values} is best on held-out examples"))

    def finished(self, summary: Summary) -> None:
        self._stop_view()
        last = summary.last
        assert last.score is not None, "a run ends with an evaluation"
        scored = f"{summary.score_name} {last.score.score:.4f}"
        text = f" {scored} after {duration(last.seconds)}, {size(last.bytes)} sent"
        self._console.print(head_text(f"{self._heading}:", text))

    def skipped(self, turn: Turn) -> None:
        self._console.print(f"{turn.folder.name} is already finished", markup=False)

    def failed(self, turn: Turn, error: IstmpiError) -> None:
        self._stop_view()
        self.noticed(f"{turn.folder.name} failed: {error}")
