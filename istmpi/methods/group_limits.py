"""Refuses runs that a replica group cannot train, with a ConfigError."""

from __future__ import annotations

from typing import TYPE_CHECKING

from istmpi.comm.groups import WHOLE_HOST
from istmpi.config.methods import METHODS
from istmpi.errors import ConfigError
from istmpi.settings import shown
from istmpi.tasks import CLASSIFICATION, DENSE_LABELS, NEXT_TOKEN, OWN, REGRESSION, TASKS

if TYPE_CHECKING:
    from istmpi.config import Run
    from istmpi.data.dataset import Dataset
    from istmpi.network.architecture import Architecture

REFUSED = ("codistillation", "joint")
"""The methods whose losses need other ranks' outputs, which only leaders have."""
FEWEST = 2
"""The members of the smallest group that divides a batch."""
DIVISIBLE = (CLASSIFICATION, REGRESSION, NEXT_TOKEN, DENSE_LABELS, OWN)
"""The tasks whose batches members can divide: each tensor has a row for each example."""


def require_groups(phase: Run, data: Dataset, network: Architecture, members: int) -> None:
    """Raise ConfigError if a group of ``members`` cannot train a phase of a run."""
    train = phase.train
    setting = _describe_size(phase)
    if members == 1:
        return
    require_divisible(phase, phase.method.name)
    if data.task not in DIVISIBLE:
        raise ConfigError(
            f"{setting} does not go with {TASKS[data.task].inputs} ({data.task}), whose batches "
            "are not divided. Leave it out."
        )
    if train.sync_batch_norm:
        from istmpi.network.norms import select_synchronised

        full = network.without_values(None)
        select_synchronised(network.batch_norm_layers(full), everywhere=True)
    _require_examples(phase, network, members, setting)
    weights = train.class_weights
    if isinstance(weights, tuple | list) and not all(weights):
        raise ConfigError(
            f"train.class_weights = {shown(weights)} with {setting}: a part of a batch may have "
            "no weight. Give weights above 0."
        )


def _describe_size(run: Run) -> str:
    return f"train.group_size = {run.train.group_size or 'host'}"


def is_divisible(run: Run, method: str) -> bool:
    """Return False if the run asks for replica groups, and a method does not train in them."""
    return run.train.group_size == 1 or method not in REFUSED


def require_divisible(run: Run, method: str) -> None:
    """Raise ConfigError if a method is not divisible."""
    if not is_divisible(run, method):
        raise ConfigError(
            f"{_describe_size(run)} does not go with method {method}. Use another method, or leave "
            "it out."
        )


def require_size(run: Run) -> None:
    """Raise ConfigError if the size of a run's groups is known only in its job."""
    if run.train.group_size == WHOLE_HOST:
        raise ConfigError(
            "train.group_size = host: seconds and memory need the processes of a group. Give "
            "train.group_size = N."
        )


def _require_examples(phase: Run, network: Architecture, members: int, setting: str) -> None:
    """Raise ConfigError if a member may get fewer examples than it can compute with."""
    batch = phase.train.batch
    least = members
    reason = "an example"
    if network.batch_norms and not phase.train.sync_batch_norm:
        if METHODS[phase.method.name].in_passes:
            raise ConfigError(
                f"{setting} does not go with method {phase.method.name} and batch normalisation: "
                "a pass may end with one example. Set train.sync_batch_norm, use another "
                "normalisation, or leave it out."
            )
        least = 2 * members
        reason = "two examples, which batch normalisation needs without train.sync_batch_norm"
    if batch < least:
        raise ConfigError(
            f"train.batch = {batch} leaves a member of {members} fewer than {reason}. Give at "
            f"least {least}."
        )


def require_no_groups(run: Run) -> None:
    """Raise ConfigError if a run asks for replica groups where there are none."""
    if run.train.group_size != 1:
        raise ConfigError(
            f"{_describe_size(run)} is for istmpi train under mpirun. Leave it out here."
        )
