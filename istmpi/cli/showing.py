"""How much a command that trains tells, and where: ``--progress``, ``-q``, ``-v``, ``--json``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import click

from istmpi import __version__
from istmpi.comm import launched

WAYS = ("bar", "lines", "none")


@dataclass(frozen=True)
class Showing:
    """What the command line asks for."""

    progress: str | None = None
    """One of `WAYS`; None is a bar on a terminal and lines elsewhere."""
    quiet: bool = False
    """Errors and warnings alone."""
    verbose: bool = False
    """A line for every round, with all figures."""
    as_json: bool = False
    """The outcome as JSON on the standard output, and everything else on the standard error."""
    since: float = field(default_factory=time.monotonic, compare=False)
    """When the command began, by the clock of `time.monotonic`."""

    def begins(self, work: str) -> None:
        """Say at once that a command has begun, by the first rank: what it needs takes seconds to load."""
        rank, ranks = launched()
        if rank == 0 and not self.quiet:
            many = f"{ranks} ranks" if ranks > 1 else "1 rank"
            if ranks == 1 and (tasks := os.environ.get("SLURM_NTASKS", "1")) != "1":
                many += f" of this SLURM job's {tasks} tasks (srun or mpirun starts all)"
            click.echo(f"istmpi {__version__} {work} on {many}: loading MPI, PyTorch and the data", err=self.as_json)
            sys.stdout.flush()


def showing(command: Callable) -> Callable:
    """Decorate a click command with the options; it receives them as `Showing` takes them."""
    for decorate in (
        click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON, all else on standard error."),
        click.option("-v", "--verbose", is_flag=True, help="A line for every round, with all figures."),
        click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors and warnings."),
        click.option(
            "--progress",
            type=click.Choice(WAYS),
            metavar="|".join(WAYS),
            help="How progress is told.  [default: bar on a terminal, else lines]",
        ),
    ):
        command = decorate(command)
    return command
