"""The job of a method: one rank's view of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from istmpi.comm import Communicator
from istmpi.comm.clock import Clock
from istmpi.comm.stopping import StopSign
from istmpi.data.batches import Batches
from istmpi.engine.shares import Shares
from istmpi.engine.store import ParameterStore
from istmpi.network.architecture import Architecture
from istmpi.optim.course import Course
from istmpi.optim.own_optimizer import OwnOptimizer
from istmpi.tasks import Task

if TYPE_CHECKING:
    from istmpi.config import Run


@dataclass
class Job:
    run: Run
    course: Course
    architecture: Architecture
    task: type[Task]
    store: ParameterStore
    batches: Batches
    communicator: Communicator
    device: torch.device
    clock: Clock
    stop: StopSign
    state_since: int = 0
    """The round at which the present optimizer state began, if the state is kept from round to
    round."""
    shares: Shares | None = None
    """The ranks' shares of the units, by round; None for the shares of the run's settings."""
    optimizer: OwnOptimizer | None = None
    """The optimizer of a user's program; None for the optimizer of the run's settings."""
    restored: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """This rank's own values, whole, from the checkpoint that the run resumes from; other values
    are in ``store``."""
