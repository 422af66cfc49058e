"""Refuses runs that a replica group cannot train, with a ConfigError."""

from __future__ import annotations

from typing import TYPE_CHECKING

from istmpi.comm.groups import WHOLE_HOST
from istmpi.config.methods import runs_in_passes
from istmpi.errors import ConfigError
from istmpi.settings import shown
from istmpi.tasks import GRAPH, SPARSE_ROWS

if TYPE_CHECKING:
    from istmpi.config.sections import Train
    from istmpi.network.architecture import Architecture

REFUSED = ("codistillation", "joint")
"""The methods whose losses need other ranks' outputs, which only leaders have."""
FEWEST = 2
"""The members of the smallest group that divides a batch."""


def require_groups(train: Train, method: str, network: Architecture, members: int) -> None:
    """Raise ConfigError if a group of ``members`` cannot train a network by a method.

    A job, its plan and ``istmpi costmodel`` call this function, so that they refuse the same runs.
    """
    setting = _describe_size(train.group_size)
    if members == 1:
        return
    if method in REFUSED:
        raise ConfigError(
            f"{setting} does not go with method {method}. Use another method, or leave it out."
        )
    _require_divided_inputs(network, setting)
    if train.sync_batch_norm:
        from istmpi.network.norms import select_synchronised

        full = network.without_values(None)
        select_synchronised(network.batch_norm_layers(full), everywhere=True)
    _require_examples(train, method, network, members, setting)
    weights = train.class_weights
    if isinstance(weights, tuple | list) and not all(weights):
        raise ConfigError(
            f"train.class_weights = {shown(weights)} with {setting}: a part of a batch may have "
            "no weight. Give weights above 0."
        )


def _describe_size(group_size: int) -> str:
    return f"train.group_size = {group_size or 'host'}"


def _require_divided_inputs(network: Architecture, setting: str) -> None:
    """Raise ConfigError if members cannot divide a batch: it lacks a row for each example."""
    undivided = {SPARSE_ROWS: network.code.sparse, GRAPH: network.code.graph}
    for inputs, is_given in undivided.items():
        if is_given:
            raise ConfigError(
                f"{setting} does not go with {inputs}, whose batches are not divided. Leave it out."
            )


def is_divisible(train: Train, method: str, network: Architecture) -> bool:
    """Return False if the run asks for replica groups that cannot train by a method."""
    try:
        require_groups(train, method, network, train.group_size)
    except ConfigError:
        return False
    return True


def require_size(group_size: int) -> None:
    """Raise ConfigError if the size of a run's groups is known only in its job."""
    if group_size == WHOLE_HOST:
        raise ConfigError(
            "train.group_size = host: seconds and memory need the processes of a group. Give "
            "train.group_size = N."
        )


def _require_examples(
    train: Train, method: str, network: Architecture, members: int, setting: str
) -> None:
    """Raise ConfigError if a member may get fewer examples than it can compute with."""
    batch = train.batch
    least = members
    reason = "an example"
    if network.batch_norms and not train.sync_batch_norm:
        if runs_in_passes(method):
            raise ConfigError(
                f"{setting} does not go with method {method} and batch normalisation: "
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


def require_no_groups(group_size: int) -> None:
    """Raise ConfigError if a run asks for replica groups where there are none."""
    if group_size != 1:
        raise ConfigError(
            f"{_describe_size(group_size)} is for istmpi train under mpirun. Leave it out here."
        )
