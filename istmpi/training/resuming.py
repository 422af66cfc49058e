"""Compares a run with a checkpoint that it resumes from, and says what has changed."""

from __future__ import annotations

import numpy as np

from istmpi.checkpoint.reader import Checkpoint
from istmpi.errors import ConfigError
from istmpi.models.architecture import Architecture
from istmpi.names import class_of
from istmpi.tasks import OWN
from istmpi.training.prepared import Prepared
from istmpi.training.same_data import contents

MAY_CHANGE = (
    "data.source",
    "data.scoring",
    "method.shares",
    "optimizer.lr",
    "optimizer.weight_decay",
    "train.rounds",
    "train.max_minutes",
    "train.patience",
)
"""Settings that a resumed run may change; the data may have moved, but not changed."""
WITHOUT_EFFECT = (
    "name",
    "data.ahead",
    "train.threads",
    "train.device",
    "train.init",
    "evaluate.",
    "checkpoint.",
    "comm.",
    "output.",
)
"""Settings, or sections of them, that do not change what is learnt."""


def changes_since(checkpoint: Checkpoint, here: Prepared) -> list[str]:
    """List allowed differences from a checkpoint's run; ConfigError where anything else differs."""
    header, changed, refused = checkpoint.header, [], []
    for setting, (saved, current) in header.run.differences(here.run).items():
        text = f"{setting} = {saved} in the checkpoint, {current} here"
        if setting in MAY_CHANGE or (setting == "model.name" and _moved(checkpoint, here.architecture)):
            changed.append(text)
        elif not setting.startswith(WITHOUT_EFFECT) and (header.data.task, setting) != (OWN, "train.batch"):
            refused.append(text)
    for fact, saved in vars(header.data).items():
        current = getattr(here.data_summary, fact)
        if saved not in (None, current) and fact != "source":
            refused.append(f"data: {fact} = {saved} in the checkpoint, {current} here")
    if not same_targets(checkpoint.targets, here.dataset.targets):
        refused.append("data: targets have another mean or deviation than in the checkpoint")
    old, new = checkpoint.architecture.table, here.architecture.table
    if difference := old.difference(new):
        refused.append(f"network: {difference} (checkpoint, here)")
    elif new.source and old.source != new.source:
        changed.append(f"the source of {here.run.model.name}, with unchanged parameters")
    if here.run.data.placement == "local" and header.ranks == here.communicator.size:
        saved, current = checkpoint.own_data(here.store.rank), contents(here.dataset.train)
        if saved not in (None, current):
            refused.append(f"data: examples, labels and features = {saved} in the checkpoint, {current} here")
    if refused:
        raise ConfigError(
            f"{checkpoint.path} belongs to another run: {'; '.join(refused)}. Give the same settings, or a new --out."
        )
    return changed


def same_targets(one: tuple[np.ndarray, ...] | None, other: tuple[np.ndarray, ...] | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(np.allclose(first, second, rtol=1e-5) for first, second in zip(one, other))


def _moved(checkpoint: Checkpoint, architecture: Architecture) -> bool:
    there = checkpoint.architecture
    same_class = class_of(there.name) == class_of(architecture.name)
    return same_class and there.table.source == architecture.table.source
