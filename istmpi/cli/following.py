"""The options by which a run is followed elsewhere than on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from istmpi.comm import Communicator
from istmpi.loggers import LOGGERS, open_loggers

if TYPE_CHECKING:
    from istmpi.training.watch import Watch


def logging(command: Callable) -> Callable:
    """Decorate a click command with --log; it receives the names as ``log``."""
    help = (
        "Tell another program of each round, too; may be given several times. csv: metrics.csv in the run's folder.  "
        f"[{' | '.join(LOGGERS)}]"
    )
    return click.option("--log", type=click.Choice(list(LOGGERS)), metavar="NAME", multiple=True, help=help)(command)


def opened(log: Sequence[str], communicator: Communicator) -> dict[str, Watch]:
    """The loggers of these names on rank 0, none on the others; DataError where one's library is not installed."""
    return open_loggers(log) if communicator.rank == 0 else {}
