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
from istmpi.engine.replica_group import ReplicaGroup
from istmpi.engine.shares import Shares
from istmpi.engine.store import ParameterStore
from istmpi.network.architecture import Architecture
from istmpi.optim.course import Course
from istmpi.optim.own_optimizer import OwnOptimizer
from istmpi.tasks import Task

if TYPE_CHECKING:
    from istmpi.config import Run


@dataclass(kw_only=True)
class LocalJob:
    """The part of a job that local steps need, and that all members of a group have."""

    run: Run
    architecture: Architecture
    task: type[Task]
    batches: Batches
    communicator: Communicator
    device: torch.device
    optimizer: OwnOptimizer | None = None
    """The optimizer of a user's program; None for the optimizer of the run's settings."""
    group: ReplicaGroup | None = None
    """The replica group whose members divide the batches; None for a rank alone."""


@dataclass(kw_only=True)
class Job(LocalJob):
    course: Course
    store: ParameterStore
    clock: Clock
    stop: StopSign
    side: int = 0
    """The side of the images; 0 for images that are not downscaled."""
    state_since: int = 0
    """The round at which the present optimizer state began, if the state is kept from round to
    round."""
    shares: Shares | None = None
    """The ranks' shares of the units, by round; None for the shares of the run's settings."""
    restored: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """This rank's own values, whole, from the checkpoint that the run resumes from; other values
    are in ``store``."""
