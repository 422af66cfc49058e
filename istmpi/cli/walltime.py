"""``--stop-before-walltime``, for the commands that train."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from istmpi.cli.quantities import FiniteRange

if TYPE_CHECKING:
    from istmpi.comm import Communicator


MOST_MINUTES = 1e6
"""Nearly two years."""


def walltime(command: Callable) -> Callable:
    """Decorate a click command with the option; it receives ``stop_before_walltime``, in minutes."""
    return click.option(
        "--stop-before-walltime",
        type=FiniteRange(min=0, max=MOST_MINUTES),
        metavar="MINUTES",
        help="Save and stop that long before the SLURM job's time is up.",
    )(command)


def deadline(minutes: float | None, communicator: Communicator) -> float | None:
    """When rank 0 shall stop, as Unix time; None on the others and without the option.

    ConfigError where the end of the job cannot be known.
    """
    from istmpi.comm.stopping import end_of_job

    if minutes is None or communicator.rank:
        return None
    return end_of_job() - 60 * minutes
