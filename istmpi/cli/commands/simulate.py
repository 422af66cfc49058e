"""``istmpi simulate``: a run on ranks that take turns in this process, with faults drawn from seeds."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import click

from istmpi.cli.commands.train import DEFAULT
from istmpi.cli.completion import complete_runs
from istmpi.cli.quantities import WholeRange
from istmpi.cli.settings import options, resolve
from istmpi.cli.showing import Showing, showing
from istmpi.errors import ConfigError, SimulationError
from istmpi.foreign import one_line
from istmpi.units import in_seconds

if TYPE_CHECKING:
    from istmpi.comm.simulated import Outcome
    from istmpi.config import Run

KINDS = "delays,stops,slow,kills"


@click.command("simulate")
@click.argument("run", required=False, shell_complete=complete_runs)
@options
@click.option(
    "--ranks", type=WholeRange(1, 10_000), default=4, show_default=True, metavar="P", help="Ranks to simulate."
)
@click.option("--faults", type=WholeRange(min=0), metavar="SEED", help="Draw what befalls ranks and messages.")
@click.option("--kinds", default=KINDS, show_default=True, metavar="A,B,...", help="Kinds of faults to draw from.")
@click.option(
    "--schedules",
    type=WholeRange(1, 100_000),
    metavar="N",
    help="Try the seeds SEED (0) to SEED+N-1, and tell findings.",
)
@click.option(
    "--resume", default="", metavar="auto|PATH", help="Resume from a checkpoint, or this run's own folder (auto)."
)
@showing
def command(
    run: str | None,
    assignments: tuple[str, ...],
    ranks: int,
    faults: int | None,
    kinds: str,
    schedules: int | None,
    resume: str,
    progress: str | None,
    quiet: bool,
    verbose: bool,
    as_json: bool,
    **given: str | None,
) -> None:
    """Train RUN, as for istmpi train, on P simulated ranks: they take turns in this process, without MPI or a launcher.

    \b
    istmpi simulate --ranks 64
    istmpi simulate my.toml --ranks 3 --faults 7
    istmpi simulate my.toml --ranks 3 --schedules 100

    Without --faults the result is that of mpirun -n P, bit for bit. A seed draws how long calls and messages take, and
    in which order messages arrive where MPI leaves that open; perhaps a rank that stands still for a while (stops), is
    slower (slow) or is lost (kills), which ends the job with exit code 137.

    With --schedules N nothing is written: each schedule must end, with the bits of the undisturbed run; one with a lost
    rank is resumed and must come to its weights. Exit code 1 where any does not.
    """
    given_too = {"--resume": resume, "--progress": progress, "-v": verbose, "--json": as_json}
    if schedules and (other := next((option for option, value in given_too.items() if value), "")):
        raise click.UsageError(f"{other} does not go with --schedules, which tells findings alone.")
    drawn = tuple(filter(None, (kind.strip() for kind in kinds.split(","))))
    if unknown := sorted(set(drawn) - set(KINDS.split(","))):
        raise ConfigError(f"--kinds {kinds}: {unknown[0]} is no kind of fault; known: {KINDS}.")
    resolved = resolve(run or DEFAULT, assignments, given)
    if schedules:
        _try(resolved, ranks, range(faults or 0, (faults or 0) + schedules), drawn, quiet)
        return
    shown = Showing(progress, quiet, verbose, as_json)
    if not quiet:
        click.echo(f"simulated: {ranks} ranks that take turns in this process", err=as_json)

    from istmpi.cli.progress import TrainingDisplay
    from istmpi.comm.simulated import Faults
    from istmpi.training.simulation import simulated_training

    befalls = Faults() if faults is None else Faults.drawn(faults, ranks, drawn)
    with TrainingDisplay(shown) as display:
        outcome = simulated_training(resolved, ranks, befalls, display, resume)
    if not quiet:
        for name, fact in _facts(outcome, str(befalls)).items():
            click.echo(f"{name:<10} {fact}", err=as_json)
    outcome.require()
    display.plots()


def _facts(outcome: Outcome, drawn: str) -> dict[str, str]:
    counts = (
        f"{sum(outcome.calls):,} calls of MPI, {outcome.messages['messages']:,} messages, {outcome.switches:,} switches"
    )
    happened = f"; came about: {', '.join(outcome.happened)}" if outcome.happened else ""
    return {"simulated": f"{counts}, {in_seconds(outcome.seconds)} of virtual time", "faults": f"{drawn}{happened}"}


def _try(run: Run, ranks: int, seeds: range, kinds: tuple[str, ...], quiet: bool) -> None:
    """Try a schedule for each seed; SimulationError where any is not as it should be."""
    from istmpi.training.simulation import Schedules

    begun, found, happened = time.monotonic(), 0, Counter()
    for schedule in Schedules(run, ranks, kinds).run(seeds):
        happened.update(schedule.kinds)
        if schedule.finding:
            found += 1
            click.echo(one_line(f"seed {schedule.seed} ({schedule.faults}): {schedule.finding}"))
    told = ", ".join(f"{count} with {kind}" for kind, count in sorted(happened.items()))
    findings = f"{found} finding{'s' * (found != 1)}"
    if not quiet:
        seconds = time.monotonic() - begun
        click.echo(f"{len(seeds):,} schedules of {ranks} ranks in {seconds:.1f} s ({told}): {findings}")
    if found:
        raise SimulationError(
            f"{found} of {len(seeds)} schedules did not come to the undisturbed run's result. "
            f"Repeat one with --schedules 1 --faults SEED."
        )
