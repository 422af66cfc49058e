"""Train one run with several methods and compare what each needs to reach a score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from istmpi.cli.commands.report import (
    add_targets_option,
    as_targets,
    build_tree,
    print_comparison,
    write_page,
)
from istmpi.cli.options import text, whole
from istmpi.cli.output import print_json
from istmpi.cli.run_options import (
    Showing,
    add_watch_options,
    open_watches,
    options,
    resolve,
    run_argument,
)
from istmpi.names import NARROW, NARROW_METHOD
from istmpi.units import counted

if TYPE_CHECKING:
    from istmpi.cli.display import ComparisonDisplay
    from istmpi.comm import Communicator
    from istmpi.config import Run
    from istmpi.errors import IstmpiError
    from istmpi.training.comparison import Comparison
    from istmpi.training.watch import Watch


REFUSED = {"method.name": "--methods"}
"""Settings that would ask for one method of several, and the option to use instead."""


@click.command("compare")
@run_argument
@text(
    "--methods",
    "NAME,...",
    "Methods to compare; narrow is local-sgd with a P-th of the widths that ist deals out.",
    default="ist,local-sgd,data-parallel",
)
@whole("--repeats", "N", "Seeds for each method.", 1, 1000, default=1)
@add_targets_option
@add_watch_options
@partial(options, without=("--method",))
def command(
    run: str | None,
    methods: str,
    repeats: int,
    targets: str | None,
    stop_before_walltime: float | None,
    log: tuple[str, ...],
    shown: Showing,
    assignments: tuple[str, ...],
    **parameters: str | None,
) -> int:
    """Train RUN with several methods and compare what each needs to reach the same score.

    \b
    mpirun -n 4 istmpi compare
    mpirun -n 8 istmpi compare speech --methods ist,local-sgd --targets 0.63,0.69,0.75 --repeats 3 --max-minutes 30

    The methods run in turn in one job, with the same initial network and batches. Evaluation time
    does not count. Repeating the command resumes a stopped comparison, or adds methods and repeats
    to a finished one. istmpi report shows a comparison again. A failed method does not stop the
    others; the command then ends with the exit code of the first failure.
    """
    names = methods.split(",")
    shown.begins("compares")
    from istmpi import comm

    communicator = comm.world()
    with communicator.agreed():
        resolved = resolve(run, assignments, parameters, REFUSED, _list_methods(names))
        scores = as_targets(targets)
        stop_at, loggers = open_watches(communicator, stop_before_walltime, log)
    comparison, display = _prepare(resolved, names, repeats, scores, stop_at, shown, communicator)
    failures = _train(comparison, display, loggers)
    title = f"{resolved.name}: {', '.join(names)} on {counted(communicator.size, 'rank')}"
    with communicator.agreed():
        if display:
            _report(comparison, scores, title, shown)
    return next((error.exit_code for error in failures.values()), 0)


def _list_methods(names: Sequence[str]) -> list[str]:
    """Return the methods whose settings the runs ``names`` read."""
    read_as = {NARROW: NARROW_METHOD}
    return [read_as.get(name, name) for name in names]


def _prepare(
    run: Run,
    methods: Sequence[str],
    repeats: int,
    scores: Sequence[float],
    stop_at: float | None,
    shown: Showing,
    communicator: Communicator,
) -> tuple[Comparison, ComparisonDisplay | None]:
    """Return the comparison once its data are open and its networks built, and rank 0's display.
    Collective."""
    from istmpi import comm

    folder = Path(run.output.folder)
    # Imports and data may hang on a network's file system.
    with comm.HangWatch(communicator, run.comm.patience, folder, cure=comm.WHILE_LOADING):
        from istmpi.cli.display import ComparisonDisplay
        from istmpi.data.sources import open_for_training
        from istmpi.report.comparison import check_targets
        from istmpi.training.comparison import Comparison
        from istmpi.training.epochs import convert_epochs

        with communicator.agreed():
            data = open_for_training(run.with_implied().data, communicator.rank, run.train.seed)
            check_targets(scores, data.scoring.score)
        counted_in_rounds = convert_epochs(run, data, communicator.size, communicator)
        # All methods take the same rounds, also fedavg, whose rounds are epochs.
        run = run.override({"train.rounds": counted_in_rounds.train.rounds})
        comparison = Comparison(run, methods, repeats, communicator, stop_at, signals=True)
        comparison.rehearse()
    display = ComparisonDisplay(shown) if communicator.rank == 0 else None
    return comparison, display


def _train(
    comparison: Comparison, display: ComparisonDisplay | None, loggers: Mapping[str, Watch]
) -> Mapping[str, IstmpiError]:
    """Train all methods; return the errors of those that failed. Collective."""
    from istmpi.loggers.logger import LoggedWatch

    if display is None:
        # Other ranks train, but neither show nor log.
        return comparison.run_training()
    with display:
        return comparison.run_training(LoggedWatch(display, loggers))


def _report(comparison: Comparison, scores: Sequence[float], title: str, shown: Showing) -> None:
    """Print a comparison of the finished runs, and write its page."""
    from istmpi.report.comparison import compare
    from istmpi.report.curves import read_curves

    # Read from the folders, because earlier jobs may have trained some of the runs.
    reached = compare(read_curves(turn.folder for turn in comparison.turns), scores)
    if shown.as_json:
        print_json(build_tree(reached))
    elif not shown.quiet:
        print_comparison(reached)
    write_page(reached, title, comparison.folder / "report.html")
