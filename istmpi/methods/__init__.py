"""The methods of training, by the name that a run file gives them."""

from istmpi.errors import ConfigError, did_you_mean
from istmpi.methods.base import InterruptedRound, Job, Method
from istmpi.methods.codistillation import Codistillation
from istmpi.methods.data_parallel import DataParallel
from istmpi.methods.diloco import DiLoCo
from istmpi.methods.dynamic_averaging import DynamicAveraging
from istmpi.methods.fedavg import FedAvg
from istmpi.methods.ist import IST
from istmpi.methods.local_sgd import LocalSGD

METHODS: dict[str, type[Method]] = {
    "ist": IST,
    "local-sgd": LocalSGD,
    "data-parallel": DataParallel,
    "diloco": DiLoCo,
    "fedavg": FedAvg,
    "dynamic-averaging": DynamicAveraging,
    "codistillation": Codistillation,
}

__all__ = ["METHODS", "Job", "Method", "InterruptedRound", "method"]


def method(name: str, setting: str = "method.name") -> type[Method]:
    """The method of a name; ConfigError with the setting and the nearest name when there is none."""
    if name not in METHODS:
        raise ConfigError(f"{setting} = {name!r} is not known{did_you_mean(name, METHODS)}")
    return METHODS[name]
