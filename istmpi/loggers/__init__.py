"""Loggers (``--log``) send a run's records to other programs.

A new logger needs a file and a line in LOGGERS.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from istmpi.errors import DataError

if TYPE_CHECKING:
    from istmpi.training.watch import Watch

LOGGERS = {
    "tensorboard": "TensorBoard",
    "wandb": "WeightsAndBiases",
    "mlflow": "MLflow",
}
"""The class of each logger, in the module with the logger's name."""


def require_installed(names: Sequence[str]) -> None:
    for name in names:
        if find_spec(name) is None:
            raise DataError(
                f"--log {name} needs {name}, which is not installed: pip install 'istmpi[{name}]'"
            )


def open_loggers(names: Sequence[str]) -> dict[str, Watch]:
    loggers = {}
    for name in dict.fromkeys(names):
        # Imported only now: a logger's library may be missing, and takes seconds to import.
        module = import_module(f"istmpi.loggers.{name}")
        loggers[name] = getattr(module, LOGGERS[name])()
    return loggers
