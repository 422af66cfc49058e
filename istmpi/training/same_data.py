"""Checks that run and data are the same on every rank, and as in the checkpoint to resume from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from istmpi.checkpoint.format import DataSummary
from istmpi.checkpoint.reader import Checkpoint
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.config.methods import spec_of
from istmpi.data.dataset import SPLITS, Dataset, Split, other_reading
from istmpi.errors import ConfigError, DataError
from istmpi.names import class_of
from istmpi.tasks import OWN

if TYPE_CHECKING:
    from istmpi.engine.store import ParameterStore
    from istmpi.network.architecture import Architecture


class PreparedRun(Protocol):
    """The parts of `istmpi.training.prepared` that are compared with a checkpoint."""

    run: Run
    communicator: Communicator
    store: ParameterStore
    data_summary: DataSummary

    @property
    def architecture(self) -> Architecture: ...

    @property
    def dataset(self) -> Dataset: ...


def require_same_everywhere(run: Run, data: Dataset, communicator: Communicator) -> None:
    """Raise ConfigError or DataError if a rank's settings, or its data's meaning, differ from rank
    0's. Collective.

    The contents of the data must be the same, too, unless each rank has its own data.
    """
    meaning = {name: getattr(data, name) for name in ("task", "shape", "classes", "outputs")}
    meaning["tokenizer"] = str(data.tokenizer or "")
    offsets = (
        data.offset is None,
        None if data.target_offset is None else data.target_offset.tolist(),
    )
    first = run, meaning, data.reading, offsets
    first_run, first_meaning, first_reading, first_offsets = communicator.broadcast_from_root(first)
    with communicator.agreed():
        if differences := first_run.differences(run):
            shown = "; ".join(
                f"{setting}: {on_root} or {here}"
                for setting, (on_root, here) in differences.items()
            )
            cure = "Give all ranks the same command line and run file."
            raise ConfigError(
                f"the ranks have different settings ({shown}; rank 0's first). {cure}"
            )
        for fact, first in first_meaning.items():
            if meaning[fact] != first:
                raise DataError(
                    f"{data.source}: {fact} = {meaning[fact]}, but {first} on rank 0. Give all ranks files that agree."
                )
        if differences := other_reading(data.reading, first_reading):
            cure = "Prepare all ranks' files with the same columns and the same --counted-from."
            raise DataError(f"{data.source}: {differences} on rank 0. {cure}")
        if first_offsets != offsets:
            raise DataError(
                f"{data.source}: its values have another float32 offset than on rank 0. Subtract the same "
                "number from all ranks' values before preparing them."
            )
    if run.data.placement != "local":
        splits = communicator.allgather(
            {name: contents(split) for name, split in data.splits.items()}
        )
        with communicator.agreed():
            if differences := _differences(splits):
                raise DataError(
                    f"{run.data.source} differs between ranks: {differences}. Give all ranks the same file, or "
                    "a file for each rank with {rank} in its name."
                )


def contents(split: Split) -> tuple[int, int, int]:
    """Return the number of examples, and checksums of labels and features: equal for equal data."""
    return len(split), split.labels_checksum, split.features_checksum


def summary(run: Run, data: Dataset) -> DataSummary:
    """Return the description of a run's data in checkpoints, the same on all ranks."""
    fingerprint = (0, 0, 0) if run.data.placement == "local" else contents(data.train)
    return DataSummary(
        run.data.source, data.kind, data.task, tuple(data.shape), data.outputs, *fingerprint
    )


def _differences(per_rank: list[dict[str, tuple[int, int, int]]]) -> str:
    differing: dict[str, list[str]] = {}
    for rank, rank_splits in enumerate(per_rank):
        for split in SPLITS:
            here, first = (splits.get(split, (0, 0, 0)) for splits in (rank_splits, per_rank[0]))
            if here[0] != first[0]:
                differing.setdefault(f"{here[0]} {split} examples, not {first[0]}", []).append(
                    str(rank)
                )
                continue
            for what, checksum, same in zip(
                ("labels", "features"), here[1:], first[1:], strict=True
            ):
                if checksum != same:
                    differing.setdefault(f"other {split} {what}", []).append(str(rank))
    return "; ".join(
        f"{what} (rank {', '.join(ranks[:4])}{', ...' * (len(ranks) > 4)})"
        for what, ranks in differing.items()
    )


MAY_CHANGE = (
    "data.source",
    "data.scoring",
    "method.shares",
    "optimizer.lr",
    "optimizer.weight_decay",
    "train.rounds",
    "train.epochs",
    "train.max_minutes",
    "train.patience",
)
"""Settings that a resumed run may change. Another path in data.source must lead to the same
data."""
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
"""Beginnings of the names of settings whose change a resumed run neither reports nor refuses."""


def changes_since(checkpoint: Checkpoint, here: PreparedRun) -> list[str]:
    """List the allowed differences from a checkpoint's run. Raises ConfigError for any other
    difference.

    Settings in `WITHOUT_EFFECT`, and a program's batch size, are neither listed nor refused.
    """
    header, changed, refused = checkpoint.header, [], []
    old, new = checkpoint.architecture.table, here.architecture.table
    moved = (
        class_of(checkpoint.architecture.name) == class_of(here.architecture.name)
        and old.source == new.source
    )
    for setting, (saved, current) in header.run.differences(here.run).items():
        if setting == "method.optimizer_state":
            saved, current = _states(header.run), _states(here.run)
            if saved == current:  # one names the default, the other leaves it out
                continue
        text = f"{setting} = {saved} in the checkpoint, {current} here"
        if setting in MAY_CHANGE or (setting == "model.name" and moved):
            changed.append(text)
        elif not setting.startswith(WITHOUT_EFFECT) and (header.data.task, setting) != (
            OWN,
            "train.batch",
        ):
            refused.append(text)
    for fact, saved in vars(header.data).items():
        current = getattr(here.data_summary, fact)
        if saved not in (None, current) and fact not in (
            "source",
            "shape" if here.dataset.network else "",
        ):
            refused.append(f"data: {fact} = {saved} in the checkpoint, {current} here")
    there, now = checkpoint.targets or (), here.dataset.targets or ()
    if len(there) != len(now) or not all(np.allclose(*pair, rtol=1e-5) for pair in zip(there, now)):
        refused.append("data: targets have another mean or deviation than in the checkpoint")
    if difference := old.difference(new):
        refused.append(f"network: {difference} (checkpoint, here)")
    elif new.source and old.source != new.source:
        changed.append(f"the source of {here.run.model.name}, with unchanged parameters")
    if here.run.data.placement == "local" and header.ranks == here.communicator.size:
        saved, current = checkpoint.own_data(here.store.rank), contents(here.dataset.train)
        if saved not in (None, current):
            refused.append(
                f"data: examples, labels and features = {saved} in the checkpoint, {current} here"
            )
    if refused:
        raise ConfigError(
            f"{checkpoint.path} belongs to another run: {'; '.join(refused)}. Give the same settings, or a new --out."
        )
    return changed


def _states(run: Run) -> str:
    """Return what becomes of the optimizer state in each of the run's methods, as text."""
    return ", ".join(dict.fromkeys(spec_of(name).state(run) for name, _ in run.phases()))
