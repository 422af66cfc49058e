"""Independent Subnet Training for MPI machines.

The names to import from here are the interface (docs/library.md). A unit is a neuron, a channel, a
head or a block of layers; the units of a layer form a group. A round's deal gives each rank units
of every group. The rank holds them: it trains them as its subnet. Each weight also has an owner,
the rank that keeps it while no rank trains it. A pull brings weights from owners to holders, a push
brings them back, a hop brings them to the next holders.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # type checkers and editors do not run __getattr__
    from istmpi.checkpoint.reader import open_checkpoint as open_checkpoint
    from istmpi.comm import world as world
    from istmpi.config import Run as Run
    from istmpi.deploy.network import CalibratedNetwork as CalibratedNetwork
    from istmpi.deploy.scoring import evaluate as evaluate
    from istmpi.engine.partition import Partition as Partition
    from istmpi.errors import ConfigError as ConfigError
    from istmpi.errors import DataError as DataError
    from istmpi.errors import DivergedError as DivergedError
    from istmpi.errors import IstmpiError as IstmpiError
    from istmpi.errors import OutputError as OutputError
    from istmpi.errors import StoppedError as StoppedError
    from istmpi.loggers import open_loggers as open_loggers
    from istmpi.loggers.logger import LoggedWatch as LoggedWatch
    from istmpi.models.moe import with_loss as with_loss
    from istmpi.program.distributed import Distributed as Distributed
    from istmpi.report.comparison import compare as compare
    from istmpi.report.curves import read_curves as read_curves
    from istmpi.training.loop import Training as Training
    from istmpi.training.progress import Progress as Progress
    from istmpi.training.run import run_training as run_training
    from istmpi.training.watch import Summary as Summary
    from istmpi.training.watch import Watch as Watch

__version__ = "0.1.0"

_PLACES = {
    "CalibratedNetwork": "deploy.network",
    "ConfigError": "errors",
    "DataError": "errors",
    "Distributed": "program.distributed",
    "DivergedError": "errors",
    "IstmpiError": "errors",
    "LoggedWatch": "loggers.logger",
    "OutputError": "errors",
    "Partition": "engine.partition",
    "Progress": "training.progress",
    "Run": "config",
    "StoppedError": "errors",
    "Summary": "training.watch",
    "Training": "training.loop",
    "Watch": "training.watch",
    "compare": "report.comparison",
    "evaluate": "deploy.scoring",
    "open_checkpoint": "checkpoint.reader",
    "open_loggers": "loggers",
    "read_curves": "report.curves",
    "run_training": "training.run",
    "with_loss": "models.moe",
    "world": "comm",
}
"""The module of each public name. It is imported when the name is used: help and plans load neither
torch nor MPI."""

__all__ = list(_PLACES)


if not TYPE_CHECKING:  # a type checker takes any name from a module with __getattr__

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module 'istmpi' has no attribute {name!r}")
        return getattr(import_module(f"istmpi.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
