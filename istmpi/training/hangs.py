"""Opens a run's watch over ranks that do not respond."""

from collections.abc import Callable

from istmpi.comm import Communicator
from istmpi.comm.hang_watch import CURE, HangWatch, print_line
from istmpi.config import Run
from istmpi.record import home


def watch_for_hangs(
    run: Run,
    communicator: Communicator,
    tell: Callable[[str], None] = print_line,
    cure: str = CURE,
) -> HangWatch:
    """Return a watch with the run's patience, which writes into its folder. Collective. ``tell``
    and ``cure`` are those of `HangWatch`."""
    folder = home(run.output.folder, run.name)
    return HangWatch(communicator, run.comm.patience, folder, tell, cure)
