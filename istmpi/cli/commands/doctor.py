"""Check MPI, hosts, cores, network, GPUs and the folder for checkpoints."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from istmpi.cli.options import as_json, flag, real, text
from istmpi.cli.output import console, print_json
from istmpi.foreign import printable

if TYPE_CHECKING:
    from istmpi.doctor import Report


@click.command("doctor")
@text("--folder", "FOLDER", "The folder for checkpoints, for a write test.", default=".")
@as_json
@flag("--meet", "Only check that all ranks start together; print their number and the MPI library.")
@real("--patience", "SECONDS", "Time to wait for a silent rank.", 1, 86400, default=20)
def command(folder: str, as_json: bool, meet: bool, patience: float) -> int:
    """Check MPI, hosts, cores, network, GPUs and the folder for checkpoints, alone or on the ranks
    of a job.

    \b
    istmpi doctor
    mpirun -n 8 istmpi doctor --folder /scratch/me

    Green works; yellow works, but costs time or safety; red fails. The exit code is 1 if anything
    is red.
    """
    if meet:
        from istmpi import comm

        communicator = comm.world()
        if communicator.rank == 0:
            print(f"{communicator.size} ranks meet: {comm.library()}")
        return 0

    from istmpi.doctor import examine

    report, ranks_meet = examine(Path(folder), patience)
    if report and as_json:
        print_json(report.tree())
    elif report:
        _show(report)
    if not ranks_meet:
        sys.exit(1)  # by force, for all ranks
    return int(report is not None and report.verdict == "red")


def _show(report: Report) -> None:
    from istmpi.doctor.finding import STATES

    stdout = console(soft_wrap=True)
    for finding in report.findings:
        state = Text(f"{finding.state:<6}", finding.state)
        name = (f"{finding.name:<9}", "bold")
        stdout.print(Text.assemble(state, "  ", name, f" {printable(finding.fact)}"))
        if finding.cure:
            stdout.print(f"{'':19}{printable(finding.cure)}")
    counts = Counter(finding.state for finding in report.findings)
    stdout.print(", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]))
