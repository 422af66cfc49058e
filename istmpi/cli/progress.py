"""What rank 0 shows of a run: a banner, live progress on a terminal or plain lines in a log, and the outcome."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rich import progress as bars
from rich.console import Console
from rich.markup import escape

from istmpi import comm
from istmpi.checkpoint.folder import NETWORK
from istmpi.checkpoint.saver import Saver
from istmpi.cost import cost
from istmpi.errors import IstmpiError
from istmpi.evaluation.evaluator import Score
from istmpi.foreign import one_line
from istmpi.record import RunFolder
from istmpi.report import plots, tables
from istmpi.report.units import duration, number, size
from istmpi.tasks import GRAPH_TASKS
from istmpi.training.comparison import ComparisonWatch, Turn
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.run import Summary, Watch

SECONDS_BETWEEN_LINES = 10
LONGEST_ROUNDS = 4 * 3600.0
"""Seconds that have two rounds in them, from which the time left is known."""


def round_bar(console: Console) -> bars.Progress:
    """A bar that counts rounds and, once two of them are over, tells the time left; a task has the field ``note``."""
    return bars.Progress(
        bars.TextColumn("round"),
        bars.MofNCompleteColumn(),
        bars.BarColumn(),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        speed_estimate_period=LONGEST_ROUNDS,
    )


class TrainingDisplay(Watch):
    """Follows one run on the console; a terminal has its cursor back once the ``with`` is left, however that is."""

    every_evaluation = True
    """Has a line, not just one every few seconds."""

    def __init__(self) -> None:
        # A rank's output is no sign under mpirun: MPICH gives it a pipe, Open MPI a terminal, whatever mpirun's own is.
        columns = comm.terminal_columns()
        self._live = columns is not None or (sys.stdout.isatty() and sys.stderr.isatty())
        coloured = self._live or bool(os.environ.get("FORCE_COLOR"))
        self._console = Console(highlight=False, soft_wrap=True, force_terminal=coloured, width=columns or None)
        self._bar: bars.Progress | None = None
        self._to_draw: Path | None = None
        self._line_at = 0.0

    def __enter__(self) -> "TrainingDisplay":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_bar()

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        self._facts(_banner(training, folder, saver))
        self._follow(training)

    def _follow(self, training: Training) -> None:
        """Begin to show the progress of a run."""
        self._score_name = training.score_name
        self._rounds = training.run.train.rounds
        if self._live:
            self._bar = round_bar(self._console)
            self._task = self._bar.add_task("", total=self._rounds, note="")
            self._bar.start()

    def progressed(self, progress: Progress) -> None:
        if self._bar:
            self._bar.update(self._task, completed=progress.round, note=f"loss {progress.loss:.4f}")
        now = time.monotonic()
        late = not self._bar and now - self._line_at >= SECONDS_BETWEEN_LINES
        if late or (progress.score and self.every_evaluation):
            self._line_at = now
            width = len(str(self._rounds))
            line = (
                f"round {progress.round:>{width}}/{self._rounds}  {progress.seconds:8.1f} s  loss {progress.loss:.4f}"
            )
            if progress.score:
                line += f"  test loss {progress.score.loss:.4f}  {self._score_name} {_scores(progress.score)}"
            self._console.print(line)

    def noticed(self, message: str) -> None:
        self._console.print(one_line(message), markup=False)

    def finished(self, summary: Summary) -> None:
        self._stop_bar()
        self._facts(_outcome(summary))
        self._to_draw = summary.folder

    def already_finished(self, folder: RunFolder) -> None:
        self._to_draw = folder.path if plots.missing(folder.path) else None

    def _stop_bar(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def plots(self) -> None:
        """Draw the plots of a finished run, if it has none yet, and name them."""
        if not self._to_draw:
            return
        try:
            drawn = ", ".join(str(path) for path in plots.draw(self._to_draw))
        except ImportError:
            drawn = "none: matplotlib is not installed (pip install 'istmpi[plots]')"
        self._facts({"plots": drawn})

    def _facts(self, facts: Mapping[str, str]) -> None:
        for name, fact in facts.items():
            self._console.print(f"[bold]{name:<10}[/] {escape(one_line(fact))}")


class ComparisonDisplay(ComparisonWatch, TrainingDisplay):
    """Follows the runs of a comparison: a banner for the first, a few lines for each."""

    every_evaluation = False

    def __init__(self) -> None:
        super().__init__()
        self._introduced = False

    def begun(self, turn: Turn, number: int, count: int) -> None:
        self._heading = f"{number}/{count} {turn.method}, seed {turn.run.train.seed}"

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        if not self._introduced:
            banner = _banner(training, folder, saver)
            self._facts({name: banner[name] for name in ("MPI", "ranks", "compute", "data", "network")})
            self._introduced = True
        self._line_at = time.monotonic()
        self._follow(training)

    def finished(self, summary: Summary) -> None:
        self._stop_bar()
        last = summary.last
        self._console.print(
            f"[bold]{escape(self._heading)}:[/] {summary.score_name} {last.score.score:.4f} "
            f"after {duration(last.seconds)}, {size(last.bytes)} sent"
        )

    def skipped(self, turn: Turn) -> None:
        self._console.print(f"{turn.folder.name} is finished already", markup=False)

    def failed(self, turn: Turn, error: IstmpiError) -> None:
        self._stop_bar()
        self._console.print(one_line(f"{turn.folder.name} failed: {error}"), markup=False)


def _banner(training: Training, folder: RunFolder, saver: Saver) -> dict[str, str]:
    run, ranks, network, data = training.run, training.communicator.size, training.architecture, training.dataset
    hosts = list(dict.fromkeys(training.hosts))
    shown = ", ".join(hosts[:4]) + ", ..." * (len(hosts) > 4)
    weights = sum(parameter.size(network.lengths) for parameter in network.parameters.values())
    plan = cost(run, network, ranks)
    dealt = ", ".join(plan.groups) or "nothing"
    every = f"every {run.checkpoint.every} rounds" if run.checkpoint.every else "none but at the end"
    how = ", in the background" * (saver.background and run.checkpoint.every > 0)
    examples, counts = "examples", f"{len(data.train):,} + {len(data.test):,} examples"
    if data.task in GRAPH_TASKS:
        examples = {"full": "whole graph", "clusters": "clusters"}.get(run.data.graph, "nodes and their neighbours")
        graph, learnt, tested = data.train.graph, len(data.train.nodes), len(data.test.nodes)
        counts = (
            f"{len(graph):,} nodes with {graph.edges:,} neighbours, {learnt:,} to learn from, {tested:,} for testing"
        )
    steps = f"{run.method.local_steps} local steps of {run.train.batch} {examples} a rank"
    if plan.spec.in_passes:
        passes = f"{run.method.epochs} pass{'es' * (run.method.epochs > 1)}"
        steps = f"{passes} over a rank's examples, {run.train.batch} at a time"
    changed = [f"{name} {value}" for name in ("crop", "flip", "cutout") if (value := getattr(run.data, name))]
    versions = f", training images changed at random ({', '.join(changed)})" if changed else ""
    alone = " (started without mpirun; mpirun -n P istmpi train uses P ranks)" * (ranks == 1)
    sizes = {"images": training.plan_of_sizes} if run.train.resolution else {}
    return {
        "run": f"{run.name} in {folder.path}",
        "MPI": comm.library(),
        "ranks": f"{ranks} on {len(hosts)} host{'s' * (len(hosts) > 1)}: {shown}{alone}",
        "compute": f"{training.device}, {training.threads} thread{'s' * (training.threads > 1)} a rank",
        "data": f"{run.data.source}, {counts}, placement {run.data.placement}" + versions,
        "network": f"{run.model.name} {network.outline}, {number(weights)} weights",
        "method": f"{run.method.name}, {run.train.rounds} rounds of {steps}",
        **sizes,
        "lr": tables.learning_rate(run.optimizer, training.method.first_step(run.train.rounds)),
        "dealt out": f"{dealt}; each rank trains {number(plan.largest.elements)} weights",
        "checkpoint": f"{every}, writer {saver.writer}{how}",
        "traffic": f"{size(plan.round_bytes)} a round over all ranks",
    }


def _scores(score: Score) -> str:
    """The score, and behind it that of every exit where there are several; of text the bits that are left of a byte."""
    exits = f" (exits {', '.join(f'{each:.4f}' for each in score.exits)})" if score.exits else ""
    bits = f" ({score.bits_per_byte:.4f} bits a byte)" if score.bits_per_byte else ""
    more = "".join(f"  {name} {of:.4f}" for name, of in (score.more or {}).items())
    return f"{score.score:.4f}{exits}{bits}{more}"


def _outcome(summary: Summary) -> dict[str, str]:
    last, score = summary.last, summary.last.score
    total = sum(summary.seconds.values())
    return {
        summary.score_name: f"{_scores(score)} on {score.examples:,} test examples, loss {score.loss:.4f}",
        "speed": f"{number(summary.examples_per_second)} examples/s over all ranks in {duration(last.seconds)}",
        "time": ", ".join(f"{phase} {seconds / total:.0%}" for phase, seconds in summary.seconds.items()),
        "sent": f"{size(last.bytes)} by all ranks",
        "network": str(summary.folder / NETWORK),
        "run folder": str(summary.folder),
    }
