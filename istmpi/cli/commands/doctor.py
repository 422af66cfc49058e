"""``istmpi doctor``: what works here, what does not, and what to do about it."""

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from istmpi.cli.quantities import FiniteRange
from istmpi.foreign import printable

_PATIENCE = 20.0


@click.command("doctor")
@click.option("--folder", default=".", metavar="FOLDER", help="Where checkpoints shall go; a write test is done there.")
@click.option("--json", "as_json", is_flag=True, help="Everything for programs, with versions, modules and settings.")
@click.option("--meet", is_flag=True, help="Only see whether all ranks meet: prints how many, and the library.")
@click.option(
    "--patience",
    type=FiniteRange(min=1, max=86400),
    default=_PATIENCE,
    metavar="SECONDS",
    help="How long to wait for a rank that says nothing (20).",
)
def command(folder: str, as_json: bool, meet: bool, patience: float) -> int:
    """Look at MPI, hosts, cores, network, GPUs and the folder for checkpoints, alone or on the ranks of a job.

    \b
    istmpi doctor
    mpirun -n 8 istmpi doctor --folder /scratch/me

    Green is good, yellow works but costs, red does not work; the exit code is 1 where anything is red.
    """
    if meet:
        from istmpi import comm

        communicator = comm.world()
        if communicator.rank == 0:
            print(f"{communicator.size} ranks meet: {comm.library()}")
        return 0

    from istmpi.doctor import examine

    report, ranks_meet = examine(Path(folder), patience)
    if report:
        if as_json:
            print(json.dumps(report.tree(), indent=2))
        else:
            _show(report)
    if not ranks_meet:
        sys.exit(1)  # by force, for all ranks
    return int(report is not None and report.verdict == "red")


def _show(report) -> None:
    """A line for each finding, its cure below it where there is one."""
    from istmpi.doctor.finding import STATES

    console = Console(emoji=False, highlight=False, soft_wrap=True)
    for finding in report.findings:
        state = f"[{finding.state}]{finding.state:<6}[/]"
        console.print(f"{state}  [bold]{escape(finding.name):<9}[/] {escape(printable(finding.fact))}")
        if finding.cure:
            console.print(f"{'':19}{escape(printable(finding.cure))}")
    counts = ((state, sum(finding.state == state for finding in report.findings)) for state in STATES)
    console.print(", ".join(f"{count} {state}" for state, count in counts if count))
