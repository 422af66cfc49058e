"""Train one run with several methods and compare what each needs to reach a score."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import click

from istmpi.cli.commands.report import as_targets, comparing, print_comparison, tree_of, write_page
from istmpi.cli.options import text, whole
from istmpi.cli.output import print_json
from istmpi.cli.run_options import Showing, options, resolve, run_argument, watched, watching
from istmpi.errors import ConfigError
from istmpi.units import counted


@click.command("compare")
@run_argument
@text("--methods", "NAME,...", "Methods to compare.", default="ist,local-sgd,data-parallel")
@whole("--repeats", "N", "Seeds for each method.", 1, 1000, default=1)
@comparing
@watching
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
    **given: str | None,
) -> int:
    """Train RUN with several methods and compare what each needs to reach the same score.

    \b mpirun -n 4 istmpi compare mpirun -n 8 istmpi compare speech --methods ist,local-sgd
    --targets 0.63,0.69,0.75 --repeats 3 --max-minutes 30

    The methods run in turn in one job, with the same initial network and batches. Evaluation time
    does not count. Repeating the command resumes a stopped comparison, or adds methods and repeats
    to a finished one. istmpi report shows a comparison again. A failed method does not stop the
    others; the command then ends with the exit code of the first failure.
    """
    if "narrow" in methods.split(","):
        raise ConfigError(
            "--methods: narrow is a network, not a method. Train it by itself (istmpi train RUN --method local-sgd "
            "--hidden N,N), and give both folders to istmpi report."
        )
    shown.begins("compares")

    from istmpi import comm

    communicator = comm.world()
    with communicator.agreed():
        resolved = resolve(run, assignments, given, refused={"method.name": "--methods"})
        scores = as_targets(targets)
        stop_at, loggers = watched(communicator, stop_before_walltime, log)

    with comm.HangWatch(
        communicator, resolved.comm.patience, Path(resolved.output.folder), cure=comm.WHILE_LOADING
    ):
        from istmpi.cli.display import ComparisonDisplay
        from istmpi.data.sources import open_for_training
        from istmpi.loggers.logger import LoggedWatch
        from istmpi.report.comparison import check_targets, compare
        from istmpi.report.curves import read_curves
        from istmpi.training.comparison import Comparison
        from istmpi.training.epochs import in_rounds

        with communicator.agreed():
            data = open_for_training(
                resolved.with_implied().data, communicator.rank, resolved.train.seed
            )
            check_targets(scores, data.scoring.score)
        resolved = in_rounds(resolved, data, communicator.size, communicator)
        comparison = Comparison(
            resolved, methods.split(","), repeats, communicator, stop_at, signals=True
        )
        comparison.rehearse()
    with ComparisonDisplay(shown) if communicator.rank == 0 else nullcontext() as display:
        failures = comparison.run_training(LoggedWatch(display, loggers) if display else None)
    with communicator.agreed():
        if communicator.rank == 0:
            reached = compare(read_curves(turn.folder for turn in comparison.turns), scores)
            title = f"{resolved.name}: {', '.join(methods.split(','))} on {counted(communicator.size, 'rank')}"
            if shown.as_json:
                print_json(tree_of(reached))
            elif not shown.quiet:
                print_comparison(reached)
            write_page(reached, title, comparison.folder / "report.html")
    return next((error.exit_code for error in failures.values()), 0)
