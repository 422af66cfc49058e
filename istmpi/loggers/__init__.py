"""``--log``: a run's records told to other programs, by a `Watch` each; a new one is a file here and a line below."""

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


def require_installed(names: Sequence[str]) -> None:
    """Refuse, with a DataError, a logger whose library is not there; nothing is imported."""
    for name in names:
        if find_spec(name) is None:
            raise DataError(f"--log {name} needs {name}, which is not installed: pip install 'istmpi[{name}]'")


def open_loggers(names: Sequence[str]) -> dict[str, Watch]:
    """The loggers of these names, each once."""
    return {name: getattr(import_module(f"istmpi.loggers.{name}"), LOGGERS[name])() for name in dict.fromkeys(names)}
