"""Train one run with several methods and compare what each needs to reach a score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from istmpi.cli.commands.report import (
    add_targets_option,
    as_targets,
    build_tree,
    print_comparison,
    write_page,
)
from istmpi.cli.completion import complete_methods, complete_names
from istmpi.cli.grid import take_grid
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
from istmpi.names import find_method_name
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
    shell_complete=complete_methods,
)
@whole("--repeats", "N", "Seeds for each method.", 1, 1000, default=1)
@text(
    "--tune",
    "A.B=V,V,...",
    "Choose this setting for each method on held-out examples; may be repeated. --lr V,V,... "
    "chooses the learning rate.",
    multiple=True,
    shell_complete=complete_names,
)
@add_targets_option
@add_watch_options
@partial(options, without=("--method",))
def command(
    run: str | None,
    methods: str,
    repeats: int,
    tune: tuple[str, ...],
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
    mpirun -n 4 istmpi compare --lr 0.01,0.03,0.1 --methods ist,local-sgd,narrow
    mpirun -n 8 istmpi compare speech --methods ist,local-sgd --targets 0.63,0.69,0.75 --repeats 3 --max-minutes 30

    The methods run in turn in one job, with the same initial network and batches. Evaluation time
    does not count. Repeating the command resumes a stopped comparison, or adds methods and repeats
    to a finished one. istmpi report shows a comparison again. A failed method does not stop the
    others; the command then ends with the exit code of the first failure.

    The option --max-minutes limits each run, or all runs together if they choose settings.
    """
    names = methods.split(",")
    shown.begins("compares")
    from istmpi import comm

    communicator = comm.world()
    with communicator.agreed():
        grid = take_grid(tune, parameters)
        read_as = [find_method_name(name) for name in names]
        resolved = resolve(run, assignments, parameters, REFUSED, read_as)
        scores = as_targets(targets)
        stop_at, loggers = open_watches(communicator, stop_before_walltime, log)
    request = Request(resolved, names, repeats=repeats, grid=grid, targets=scores, stop_at=stop_at)
    return _compare(request, loggers, shown, communicator)


def _compare(
    request: Request, loggers: Mapping[str, Watch], shown: Showing, communicator: Communicator
) -> int:
    """Carry out and report a comparison; return the exit code. Collective."""
    comparison, display = _prepare(request, shown, communicator)
    failures = _train(comparison, display, loggers)
    with communicator.agreed():
        if display:
            _report(comparison, request, communicator.size, shown)
    return next((error.exit_code for error in failures.values()), 0)


@dataclass(frozen=True)
class Request:
    """A comparison that a command line asks for."""

    run: Run
    methods: Sequence[str]
    repeats: int
    grid: Mapping[str, Sequence[Any]]
    """The values of each setting that is chosen for each method."""
    targets: Sequence[float]
    stop_at: float | None
    """The Unix time at which the job must stop."""


def _prepare(
    request: Request, shown: Showing, communicator: Communicator
) -> tuple[Comparison, ComparisonDisplay | None]:
    """Return the comparison once its data are open and its networks built, and rank 0's display.
    Collective."""
    from istmpi import comm

    run = request.run
    folder = Path(run.output.folder)
    # Imports and data may hang on a network's file system.
    with comm.HangWatch(communicator, run.comm.patience, folder, cure=comm.WHILE_LOADING):
        from istmpi.cli.display import ComparisonDisplay
        from istmpi.data.sources import open_for_training
        from istmpi.report.comparison import check_targets
        from istmpi.training.epochs import convert_epochs

        with communicator.agreed():
            data = open_for_training(run.with_implied().data, communicator.rank, run.train.seed)
            check_targets(request.targets, data.scoring.score)
        counted_in_rounds = convert_epochs(run, data, communicator.size, communicator)
        # All methods take the same rounds, also fedavg, whose rounds are epochs.
        run = run.override({"train.rounds": counted_in_rounds.train.rounds})
        comparison = _make_comparison(replace(request, run=run), communicator)
        comparison.rehearse()
    display = None
    if communicator.rank == 0:
        display = ComparisonDisplay(shown)
    return comparison, display


def _make_comparison(request: Request, communicator: Communicator) -> Comparison:
    from istmpi.training.comparison import Comparison
    from istmpi.training.tuning import TunedComparison

    kind: Callable[..., Comparison] = Comparison
    if request.grid:
        kind = partial(TunedComparison, grid=request.grid)
    return kind(
        run=request.run,
        methods=request.methods,
        repeats=request.repeats,
        communicator=communicator,
        deadline=request.stop_at,
        signals=True,
    )


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


def _report(comparison: Comparison, request: Request, ranks: int, shown: Showing) -> None:
    """Print a comparison of the finished runs, and write its page."""
    from istmpi.report.comparison import compare
    from istmpi.report.curves import read_curves
    from istmpi.report.tuning import read_tunings

    # Read from the folders, because earlier jobs may have trained some of the runs.
    reached = compare(read_curves(turn.folder for turn in comparison.turns), request.targets)
    reached = replace(reached, tunings=read_tunings([comparison.folder]))
    if shown.as_json:
        print_json(build_tree(reached))
    elif not shown.quiet:
        print_comparison(reached)
    methods = ", ".join(request.methods)
    title = f"{request.run.name}: {methods} on {counted(ranks, 'rank')}"
    write_page(reached, title, comparison.folder / "report.html")
