"""``istmpi compare``: several methods on one run, in turns, in this job."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path, PurePath

import click

from istmpi.cli.completion import complete_runs
from istmpi.cli.following import logging, opened
from istmpi.cli.quantities import WholeRange
from istmpi.cli.reporting import as_targets, draw, print_comparison, print_json, reporting, write_page
from istmpi.cli.settings import options, resolve
from istmpi.cli.showing import Showing, showing
from istmpi.cli.walltime import deadline, walltime

METHODS = "ist,local-sgd,data-parallel"


def _settings(command: Callable) -> Callable:
    return options(command, without=("--method",))


@click.command("compare")
@click.argument("run", default="digits", shell_complete=complete_runs)
@click.option("--methods", metavar="NAME,...", default=METHODS, show_default=True, help="What to compare.")
@click.option(
    "--repeats", type=WholeRange(1, 1000), default=1, show_default=True, metavar="N", help="Seeds to compare them on."
)
@reporting
@walltime
@logging
@showing
@_settings
def command(
    run: str,
    methods: str,
    repeats: int,
    targets: str | None,
    watts: float | None,
    stop_before_walltime: float | None,
    log: tuple[str, ...],
    progress: str | None,
    quiet: bool,
    verbose: bool,
    as_json: bool,
    assignments: tuple[str, ...],
    **given: str | None,
) -> int:
    """Train RUN with several methods and say what each needs to reach the same score.

    \b
    mpirun -n 4 istmpi compare
    mpirun -n 8 istmpi compare speech --methods ist,local-sgd --targets 0.63,0.69,0.75 --repeats 3 --max-minutes 30

    In one job and in turns, from the same initial network, on the same batches, the clock stopped while evaluating.
    The same command resumes a comparison that was stopped, and adds methods and repeats to one that is finished;
    istmpi report shows it again. A method that fails does not stop the others: the exit code is then its own.
    """
    shown = Showing(progress, quiet, verbose, as_json)
    shown.begins("compares")

    from istmpi import comm

    communicator = comm.world()
    with communicator.agreed():
        resolved = resolve(run, assignments, given, refused={"method.name": "--methods"})
        wanted = as_targets(targets)
        stop_at = deadline(stop_before_walltime, communicator)
        loggers = opened(log, communicator)

    with comm.HangWatch(communicator, resolved.comm.patience, Path(resolved.output.folder), cure=comm.WHILE_LOADING):
        from istmpi.cli.progress import ComparisonDisplay
        from istmpi.data.sources import open_for_training
        from istmpi.loggers.logged_watch import LoggedWatch
        from istmpi.report.comparison import check_targets, compare
        from istmpi.report.curves import read_curves
        from istmpi.tasks import TASKS
        from istmpi.training.comparison import Comparison

        with communicator.agreed():
            task = open_for_training(resolved.with_implied().data, communicator.rank, resolved.train.seed).task
            check_targets(wanted, TASKS[task].score)
        comparison = Comparison(resolved, methods.split(","), repeats, communicator, stop_at, signals=True)
        comparison.rehearse()
    with ComparisonDisplay(shown) if communicator.rank == 0 else nullcontext() as display:
        failures = comparison.run_training(LoggedWatch(display, loggers) if display else None)
    with communicator.agreed():
        if communicator.rank == 0:
            found = compare(read_curves(turn.folder for turn in comparison.turns), wanted, watts)
            title = f"{resolved.name}: {', '.join(methods.split(','))} on {communicator.size} ranks"
            if as_json:
                print_json({PurePath(resolved.data.source).name: found})
            elif not quiet:
                print_comparison(found)
            write_page({resolved.name: found}, title, comparison.folder / "report.html")
            with suppress(ImportError):
                draw({resolved.name: found}, title, comparison.folder / "report.png")
    return next((error.exit_code for error in failures.values()), 0)
