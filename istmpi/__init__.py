"""Independent Subnet Training for MPI machines. The names to import from here are the interface (docs/library.md).

A unit is a neuron, a channel, a head or a block of layers; the units of a layer form a group. A round's deal gives each
rank units of every group. The rank holds them: it trains them as its subnet. Each weight also has an owner, the rank
that keeps it while no rank trains it. A pull brings weights from owners to holders, a push brings them back, a hop
brings them to the next holders.
"""

from importlib import import_module

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
"""The module of each public name. It is imported when the name is used: help and plans load neither torch nor MPI."""

__all__ = list(_PLACES)


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'istmpi' has no attribute {name!r}")
    return getattr(import_module(f"istmpi.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
