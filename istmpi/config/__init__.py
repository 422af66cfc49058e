"""A run's settings: `Run` and its sections."""

from istmpi.config.described import Setting, every_setting
from istmpi.config.learner import Method, Model, OwnModel
from istmpi.config.run import Run, type_of
from istmpi.config.run_file import SHIPPED, shipped
from istmpi.config.sections import Checkpoint, Evaluate, Optimizer, Output, Train
from istmpi.data.settings import Data

__all__ = [
    "SHIPPED",
    "Checkpoint",
    "Data",
    "Evaluate",
    "Method",
    "Model",
    "Optimizer",
    "Output",
    "OwnModel",
    "Run",
    "Setting",
    "Train",
    "every_setting",
    "shipped",
    "type_of",
]
