"""Compares a run with a checkpoint that it resumes from, and says what has changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from istmpi.checkpoint.format import DataSummary
from istmpi.checkpoint.reader import Checkpoint
from istmpi.config import Run
from istmpi.errors import ConfigError
from istmpi.models.architecture import Architecture
from istmpi.names import class_of
from istmpi.tasks import OWN

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


@dataclass(frozen=True)
class Present:
    """The run that wants to resume, on one rank."""

    run: Run
    data: DataSummary
    architecture: Architecture
    ranks: int
    rank: int
    own_data: tuple[int, int, int] | None
    """The contents of this rank's own training data; None where all ranks read the same."""
    targets: tuple[np.ndarray, np.ndarray] | None = None
    """The moments that standardise targets."""


def changes_since(checkpoint: Checkpoint, here: Present) -> list[str]:
    """List allowed differences from a checkpoint's run; ConfigError where anything else differs."""
    header, changed, refused = checkpoint.header, [], []
    for setting, (saved, current) in header.run.differences(here.run).items():
        text = f"{setting} = {saved} there, {current} here"
        if setting in MAY_CHANGE or (setting == "model.name" and _moved(checkpoint, here.architecture)):
            changed.append(text)
        elif not setting.startswith(WITHOUT_EFFECT) and (header.data.task, setting) != (OWN, "train.batch"):
            refused.append(text)
    for fact, saved in asdict(header.data).items():
        current = getattr(here.data, fact)
        if saved not in (None, current) and fact != "source":
            refused.append(f"data: {fact} = {saved} there, {current} here")
    if not same_targets(checkpoint.targets, here.targets):
        refused.append("data: targets are standardised by other numbers than there")
    old, new = checkpoint.architecture.table, here.architecture.table
    if difference := old.difference(new):
        refused.append(f"network: {difference} (there, here)")
    elif new.source and old.source != new.source:
        changed.append(f"the source of {here.run.model.name}, whose parameters are as they were")
    if here.own_data is not None and header.ranks == here.ranks:
        saved = checkpoint.own_data(here.rank)
        if saved not in (None, here.own_data):
            refused.append(f"data: examples, labels and features = {saved} there, {here.own_data} here")
    if refused:
        raise ConfigError(
            f"{checkpoint.path} is of another run: {'; '.join(refused)}. Give the same settings, or a new --out."
        )
    return changed


def same_targets(one: tuple[np.ndarray, ...] | None, other: tuple[np.ndarray, ...] | None) -> bool:
    """Say whether targets are standardised alike, or not at all."""
    if one is None or other is None:
        return one is other
    return all(np.allclose(first, second, rtol=1e-5) for first, second in zip(one, other))


def _moved(checkpoint: Checkpoint, architecture: Architecture) -> bool:
    there = checkpoint.architecture
    same_class = class_of(there.name) == class_of(architecture.name)
    return same_class and there.table.source == architecture.table.source
