"""Train on simulated ranks in one process, with delays, stops and losses drawn from a seed."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import click

from istmpi.cli.options import text, whole
from istmpi.cli.output import say
from istmpi.cli.run_options import (
    Showing,
    add_display_options,
    options,
    resolve,
    run_and_folder,
    run_argument,
)
from istmpi.errors import SimulationError
from istmpi.units import counted, in_seconds

if TYPE_CHECKING:
    from istmpi.config import Run


@click.command("simulate")
@run_argument
@options
@whole("--ranks", "P", "Simulated ranks.", 1, 10_000, default=4)
@whole("--faults", "SEED", "Draw faults of ranks and messages.", 0)
@whole("--schedules", "N", "Try the seeds SEED (0) to SEED+N-1; print findings.", 1, 100_000)
@text("--resume", "auto|PATH", "Same as for istmpi train.", default="")
@add_display_options
def command(
    run: str | None,
    assignments: tuple[str, ...],
    ranks: int,
    faults: int | None,
    schedules: int | None,
    resume: str,
    shown: Showing,
    **parameters: str | None,
) -> None:
    """Train RUN with the options of istmpi train on P simulated ranks, which take turns in this
    process without MPI.

    \b
    istmpi simulate --ranks 64
    istmpi simulate my.toml --ranks 3 --faults 7
    istmpi simulate my.toml --ranks 3 --schedules 100

    The result is that of mpirun -n P, bit for bit, if there are no --faults. SEED of --faults draws
    the times of calls, and the order of messages where MPI leaves it open. SEED may also pause,
    slow down or kill a rank; a killed rank ends the job with exit code 137.

    --schedules N leaves no files. Each schedule must end with the bits of the run without faults. A run with a killed
    rank is resumed, and must reach the same weights. The exit code is 1 if any schedule differs.
    """
    if schedules:
        _require_findings_alone(resume, shown)
        first = faults or 0
        seeds = range(first, first + schedules)
        _try(_resolve(run, assignments, parameters), ranks, seeds, shown.quiet)
        return
    run, resume, own_folder = run_and_folder(run, resume)
    if not parameters["out"]:
        parameters["out"] = own_folder
    _train(_resolve(run, assignments, parameters), ranks, faults, resume, shown)


def _resolve(
    run: str | None, assignments: tuple[str, ...], parameters: dict[str, str | None]
) -> Run:
    from istmpi.methods.group_limits import require_no_groups

    resolved = resolve(run, assignments, parameters)
    require_no_groups(resolved.train.group_size)
    return resolved


def _require_findings_alone(resume: str, shown: Showing) -> None:
    """Raise UsageError for options that do not go with --schedules."""
    values = {
        "--resume": resume,
        "--progress": shown.progress,
        "-v": shown.verbose,
        "--json": shown.as_json,
    }
    for option, value in values.items():
        if value:
            raise click.UsageError(
                f"{option} does not go with --schedules, which prints only findings."
            )


def _train(run: Run, ranks: int, seed: int | None, resume: str, shown: Showing) -> None:
    """Train on simulated ranks. ``seed`` draws faults; None means no faults."""

    def tell(text: str) -> None:
        if not shown.quiet:
            # With --json, standard output has the result alone.
            say(text, err=shown.as_json)

    tell(f"simulated: {ranks} ranks that take turns in this process")

    from istmpi.cli.display import TrainingDisplay
    from istmpi.simulated import Faults
    from istmpi.simulated.schedules import simulate_training

    drawn = Faults() if seed is None else Faults.draw(seed, ranks)
    with TrainingDisplay(shown) as display:
        outcome = simulate_training(run, ranks, drawn, display, resume)
    tell(
        f"simulated  {sum(outcome.calls):,} MPI calls, {outcome.messages['messages']:,} messages, "
        f"{outcome.switches:,} switches, {in_seconds(outcome.seconds)} of virtual time"
    )
    words = f"faults     {drawn}"
    if outcome.happened:
        words += f"; came about: {', '.join(outcome.happened)}"
    tell(words)
    # Raises the job's error, which the faults above explain.
    outcome.require()
    display.plots()


def _try(run: Run, ranks: int, seeds: range, quiet: bool) -> None:
    """Run a schedule of each seed. Raises SimulationError if one differs."""
    from istmpi.simulated.schedules import Schedules

    begun = time.monotonic()
    findings = 0
    happened: Counter[str] = Counter()
    for schedule in Schedules(run, ranks).run(seeds):
        happened.update(schedule.kinds)
        if schedule.finding:
            findings += 1
            say(f"seed {schedule.seed} ({schedule.faults}): {schedule.finding}")
    counts = ", ".join(f"{count} with {kind}" for kind, count in sorted(happened.items()))
    if not quiet:
        seconds = time.monotonic() - begun
        schedules = f"{counted(len(seeds), 'schedule')} of {counted(ranks, 'rank')}"
        verdict = counted(findings, "finding")
        click.echo(f"{schedules} in {seconds:.1f} s ({counts}): {verdict}")
    if findings:
        raise SimulationError(
            f"{findings} of {len(seeds)} schedules differ from the undisturbed run. "
            "Repeat one with --schedules 1 --faults SEED."
        )
