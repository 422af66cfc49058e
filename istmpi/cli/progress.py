"""What rank 0 shows of a run: a banner, live progress on a terminal or plain lines in a log, and the outcome."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from istmpi import comm
from istmpi.checkpoint.folder import NETWORK
from istmpi.checkpoint.saver import Saver
from istmpi.cli.live import LiveView
from istmpi.cli.showing import Showing
from istmpi.cost import cost
from istmpi.cost.calibration import SHARE
from istmpi.errors import IstmpiError
from istmpi.evaluation.evaluator import Score
from istmpi.evaluation.sample import scored_in_training
from istmpi.foreign import one_line
from istmpi.record import SUMMARY, RunFolder
from istmpi.report import plots, tables
from istmpi.report.units import duration, number, size
from istmpi.tasks import GRAPH_TASKS
from istmpi.training.comparison import ComparisonWatch, Turn
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.watch import Summary, Watch

SECONDS_BETWEEN_LINES = 10


class TrainingDisplay(Watch):
    """Follows one run on the console; a terminal has its cursor back once the ``with`` is left, however that is."""

    every_evaluation = True
    """Has a line, not just one every few seconds."""

    def __init__(self, showing: Showing | None = None) -> None:
        self._showing = showing = showing or Showing()
        # A rank's output is no sign under mpirun: MPICH gives it a pipe, Open MPI a terminal, whatever mpirun's own is.
        columns = comm.terminal_columns()
        terminal = columns is not None or (sys.stdout.isatty() and sys.stderr.isatty())
        coloured = terminal or bool(os.environ.get("FORCE_COLOR"))
        self._way = showing.progress or ("bar" if terminal else "lines")
        self._console = Console(
            emoji=False,
            highlight=False,
            soft_wrap=not terminal,
            force_terminal=coloured,
            width=columns or None,
            stderr=showing.as_json,
            quiet=showing.quiet,
        )
        self._wide = not terminal
        self._view: LiveView | None = None
        self._to_draw: Path | None = None
        self._line_at = 0.0
        self._begun = time.monotonic()

    def __enter__(self) -> "TrainingDisplay":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_view()

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        self._facts(_banner(training, folder, saver))
        self._follow(training)

    def _follow(self, training: Training, title: str = "round") -> None:
        self._rounds = training.run.train.rounds
        self._begun = time.monotonic()
        if self._way == "bar" and not self._showing.quiet:
            self._view = LiveView(self._console, self._rounds, training.hosts, title)
            self._view.start()

    def progressed(self, progress: Progress) -> None:
        if self._view:
            self._view.progressed(progress)
        now = time.monotonic()
        late = not self._view and now - self._line_at >= SECONDS_BETWEEN_LINES
        due = late or self._showing.verbose or ((progress.score or progress.validation) and self.every_evaluation)
        if due and self._way != "none":
            self._line_at = now
            self._console.print(self._line(progress), markup=False)

    def _line(self, progress: Progress) -> str:
        """What is known after a round."""
        width = len(str(self._rounds))
        line = f"round {progress.round:>{width}}/{self._rounds}  {progress.seconds:8.1f} s  loss {progress.loss:.4f}"
        last = progress.last_round
        if self._showing.verbose:
            line += f"  lr {progress.learning_rate:.3g}"
        if self._showing.verbose and last and last.rates:
            examples, sent = last.rates
            line += f"  {number(examples)} examples/s  {size(sent)}/s"
            line += f"  {phases(last.phases)}"
            if progress.slowest:
                line += f"  {progress.slowest}"
            if last.shares:
                line += f"  shares {','.join(f'{share:.3g}' for share in last.shares)}"
        if scored := progress.validation:
            line += f"  validation loss {scored.loss:.4f}  {progress.score_name} {_scores(scored)}"
        if progress.score:
            line += f"  test loss {progress.score.loss:.4f}  {progress.score_name} {_scores(progress.score)}"
        if progress.score or progress.validation:
            line += f"  evaluate {progress.evaluating:.0%}"
        return line

    def noticed(self, message: str) -> None:
        if self._showing.quiet:
            print(one_line(message), file=sys.stderr, flush=True)
        else:
            self._console.print(one_line(message), markup=False)

    def finished(self, summary: Summary) -> None:
        self._stop_view()
        self._facts(_outcome(summary, self._rounds, self._begun - self._showing.since, time.monotonic() - self._begun))
        self._told(summary.folder)
        self._to_draw = summary.folder

    def already_finished(self, folder: RunFolder) -> None:
        self._told(folder.path)
        self._to_draw = folder.path if plots.missing(folder.path) else None

    def _told(self, folder: Path) -> None:
        if self._showing.as_json:
            print((folder / SUMMARY).read_text(), end="", flush=True)

    def _stop_view(self) -> None:
        if self._view:
            self._view.stop()
            self._view = None

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
        """Print these, on a terminal in a column of their own that is broken between words."""
        if self._wide:
            for name, fact in facts.items():
                self._console.print(f"[bold]{name:<10}[/] {escape(one_line(fact))}")
            return
        table = Table.grid(padding=(0, 1))
        table.add_column(min_width=10, no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for name, fact in facts.items():
            table.add_row(name, escape(one_line(fact)))
        self._console.print(table)


class ComparisonDisplay(ComparisonWatch, TrainingDisplay):
    """Follows the runs of a comparison: a banner for the first, a few lines for each."""

    every_evaluation = False

    def __init__(self, showing: Showing | None = None) -> None:
        super().__init__(showing)
        self._introduced = False

    def begun(self, turn: Turn, number: int, count: int) -> None:
        self._heading = f"{number}/{count} {turn.method}, seed {turn.run.train.seed}"
        self._console.print(f"[bold]{escape(self._heading)}[/]")

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        if not self._introduced:
            banner = _banner(training, folder, saver)
            self._facts({name: banner[name] for name in ("MPI", "ranks", "compute", "data", "network")})
            self._introduced = True
        self._line_at = time.monotonic()
        self._follow(training, self._heading)

    def finished(self, summary: Summary) -> None:
        self._stop_view()
        last = summary.last
        self._console.print(
            f"[bold]{escape(self._heading)}:[/] {escape(summary.score_name)} {last.score.score:.4f} "
            f"after {duration(last.seconds)}, {size(last.bytes)} sent"
        )

    def skipped(self, turn: Turn) -> None:
        self._console.print(f"{turn.folder.name} is finished already", markup=False)

    def failed(self, turn: Turn, error: IstmpiError) -> None:
        self._stop_view()
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
    if training.best:
        counts += f", {len(training.sizes[0].dataset.splits['validation'].labels()):,} for validation"
    steps = f"{run.method.local_steps} local steps of {run.train.batch} {examples} a rank"
    if plan.spec.in_passes:
        passes = f"{run.method.epochs} pass{'es' * (run.method.epochs > 1)}"
        steps = f"{passes} over a rank's examples, {run.train.batch} at a time"
    changed = [f"{name} {value}" for name in ("crop", "flip", "cutout") if (value := getattr(run.data, name))]
    versions = f", training images changed at random ({', '.join(changed)})" if changed else ""
    alone = " (started without mpirun; mpirun -n P istmpi train uses P ranks)" * (ranks == 1)
    assumed = {"assumed": "; ".join(data.assumed)} if data.assumed else {}
    sizes = {"images": training.plan_of_sizes} if run.train.resolution else {}
    return {
        "run": f"{run.name} in {folder.path}",
        "MPI": comm.library(),
        "ranks": f"{ranks} on {len(hosts)} host{'s' * (len(hosts) > 1)}: {shown}{alone}",
        "compute": f"{training.device}, {training.threads} thread{'s' * (training.threads > 1)} a rank",
        "data": f"{run.data.source}, {counts}, placement {run.data.placement}" + versions,
        **assumed,
        "network": f"{run.model.name} {network.outline}, {number(weights)} weights",
        "method": f"{run.method.name}, {run.train.rounds} round{'s' * (run.train.rounds > 1)} of {steps}",
        **sizes,
        "lr": tables.learning_rate(run.optimizer, training.method.first_step(run.train.rounds)),
        "dealt out": f"{dealt}; each rank trains {number(plan.largest.elements)} weights",
        "evaluation": _evaluations(training),
        "checkpoint": f"{every}, writer {saver.writer}{how}",
        "traffic": f"{size(plan.round_bytes)} a round over all ranks",
    }


def _evaluations(training: Training) -> str:
    """When the network is evaluated, on how much, and the part of the run's FLOPs that this takes."""
    run, data, evaluator = training.run, training.dataset, training.evaluator
    every = run.evaluate.rounds_between(run.train.rounds)
    words = f"every {every} rounds" if every > 1 else "every round"
    if data.task in GRAPH_TASKS:
        return words
    words += f" on {scored_in_training(run, data):,} examples"
    if training.architecture.batch_norms:
        words += f", calibrated on {evaluator.sampled:,}"
    words += f": {evaluator.share:.0%} of the FLOPs"
    return words + ", more than a tenth (evaluate.every, evaluate.examples make it less)" * (evaluator.share > SHARE)


def _scores(score: Score) -> str:
    exits = f" (exits {', '.join(f'{each:.4f}' for each in score.exits)})" if score.exits else ""
    bits = f" ({score.bits_per_byte:.4f} bits a byte)" if score.bits_per_byte else ""
    more = "".join(f"  {name} {of:.4f}" for name, of in (score.more or {}).items())
    return f"{score.score:.4f}{exits}{bits}{more}"


def phases(seconds: Mapping[str, float]) -> str:
    """Where time went, most first: ``compute 80%, hop 20%``; what is below half a percent is left out."""
    total = sum(seconds.values()) or 1
    most_first = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{phase} {part / total:.0%}" for phase, part in most_first if part / total >= 0.005)


def _outcome(summary: Summary, rounds: int, loading: float, elapsed: float) -> dict[str, str]:
    """How a run ended; setting it up took ``loading`` seconds, and ended ``elapsed`` seconds ago."""
    last, score = summary.last, summary.last.score
    early = {} if last.round == rounds else {"ended": f"after round {last.round} of {rounds}: {summary.ended}"}
    if best := summary.best:
        words = f"{best.path} of round {best.round}: {summary.score_name} {best.validation:.4f} on the validation split"
        early["best"] = f"{words}, {_scores(best.score)} on the test split"
    # Training counts from the run's first job on; where that is more than this job took, the times would disagree.
    since = " since it was resumed" if elapsed < last.seconds else ""
    return {
        summary.score_name: f"{_scores(score)} on {score.examples:,} test examples, loss {score.loss:.4f}",
        **early,
        **({"slowest": str(summary.slowest)} if summary.slowest else {}),
        "speed": f"{number(summary.examples_per_second)} examples/s over all ranks in {duration(last.seconds)}",
        "time": f"{duration(elapsed)}{since} with evaluations and saving: {phases(summary.seconds)}; "
        f"before it {duration(loading)} of loading",
        "sent": f"{size(last.bytes)} by all ranks",
        "network": str(summary.folder / NETWORK),
        "run folder": str(summary.folder),
    }
