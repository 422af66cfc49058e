"""Checks that run and data are the same on every rank, and as in the checkpoint to resume from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from istmpi.checkpoint.format import DataSummary, Header
from istmpi.checkpoint.reader import Checkpoint
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.data.dataset import SPLITS, Dataset, Split, describe_difference
from istmpi.data.settings import Data
from istmpi.errors import ConfigError, DataError
from istmpi.names import find_class_name
from istmpi.tasks import OWN
from istmpi.units import list_first

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


def digest_settings(run: Run) -> str:
    return _digest(run.flat())


def _digest(value: object) -> str:
    """Return a digest. Equal values may have different digests, as their parts may be in another
    order."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def require_same_settings(run: Run, digests: Sequence[str], communicator: Communicator) -> None:
    """Raise ConfigError if a rank's settings differ from rank 0's. Collective.

    ``digests``: all ranks' `digest_settings`.
    """
    if all(digest == digests[0] for digest in digests):
        return
    first = communicator.broadcast_from_root(run)
    with communicator.agreed():
        _compare_runs(run, first)


def _compare_runs(run: Run, first: Run) -> None:
    differences = first.differences(run)
    if differences:
        shown = "; ".join(
            f"{setting}: {expected} or {value}"
            for setting, (expected, value) in differences.items()
        )
        raise ConfigError(
            f"the ranks have different settings ({shown}; rank 0's first). Give all ranks the same "
            "command line and run file."
        )


Contents = tuple[int, int, int]
"""The number of a split's examples, and checksums of labels and features: equal for equal data."""
NO_SPLIT: Contents = (0, 0, 0)


@dataclass(frozen=True)
class Outline:
    """The part of the data that ranks compare."""

    meaning: str
    """A digest of the meaning of the numbers."""
    contents: Mapping[str, Contents]
    """The contents of each split that all ranks must have; nothing with ``local`` data."""

    @staticmethod
    def from_data(settings: Data, data: Dataset) -> Outline:
        contents = {}
        # Each rank has its own examples with local data; only their meaning must agree.
        if settings.placement != "local":
            contents = {name: _summarise_common(data, split) for name, split in data.splits.items()}
        return Outline(_digest(_Meaning.from_data(data)), contents)


def require_same_data(
    source: str, data: Dataset, outlines: Sequence[Outline], communicator: Communicator
) -> None:
    """Raise DataError if the meaning of a rank's data differs from that on rank 0. Collective.

    The contents must be the same, too, except what each rank has alone. ``outlines``: those of all
    ranks.
    """
    if any(outline.meaning != outlines[0].meaning for outline in outlines):
        meaning = _Meaning.from_data(data)
        first_meaning = communicator.broadcast_from_root(meaning)
        with communicator.agreed():
            _require_same_meaning(data.source, meaning, first_meaning)
    differences = _describe_differences([outline.contents for outline in outlines])
    if differences:
        cure = "Give all ranks the same file, or a file for each rank with {rank} in its name."
        if data.columns:
            cure = "Give all ranks the same rows, in the same order."
        error = DataError(f"{source} differs between ranks: {differences}. {cure}")
        error.everywhere = True
        raise error


@dataclass(frozen=True)
class _Meaning:
    """The meaning of a data set's numbers, which must be the same on all ranks."""

    facts: Mapping[str, Any]
    reading: Mapping[str, Any]
    has_offset: bool
    target_offset: list[float] | None

    @staticmethod
    def from_data(data: Dataset) -> _Meaning:
        facts = {name: getattr(data, name) for name in ("task", "shape", "classes", "outputs")}
        facts["tokenizer"] = str(data.tokenizer or "")
        target_offset = None
        if data.target_offset is not None:
            target_offset = data.target_offset.tolist()
        return _Meaning(
            facts=facts,
            reading=data.reading,
            has_offset=data.offset is not None,
            target_offset=target_offset,
        )


def _require_same_meaning(source: str, meaning: _Meaning, first: _Meaning) -> None:
    # In the order of `from_data`: the first difference explains later ones.
    for name, fact in meaning.facts.items():
        if fact != first.facts[name]:
            raise DataError(
                f"{source}: {name} = {fact}, but {first.facts[name]} on rank 0. Give all ranks "
                "files that agree."
            )
    differences = describe_difference(meaning.reading, first.reading)
    if differences:
        raise DataError(
            f"{source}: {differences} on rank 0. Prepare all ranks' files with the same columns "
            "and the same --counted-from; a table with --like, the prepared file of rank 0."
        )
    same_offset = meaning.has_offset == first.has_offset
    if not same_offset or meaning.target_offset != first.target_offset:
        raise DataError(
            f"{source}: its values have another float32 offset than on rank 0. Subtract the same "
            "number from all ranks' values before preparing them."
        )


def summarise_split(split: Split) -> Contents:
    return len(split), split.labels_checksum, split.features_checksum


def _summarise_common(data: Dataset, split: Split) -> Contents:
    """Return what all ranks have in common of a split's `summarise_split`, with 0 for the rest."""
    if not data.columns:
        return summarise_split(split)
    labels = 0
    if data.labels_on is None:
        labels = split.labels_checksum
    return len(split), labels, 0


def summarise_data(settings: Data, data: Dataset) -> DataSummary:
    """Return the description of a run's data in checkpoints, the same on all ranks."""
    train = labels = features = 0
    if settings.placement != "local":
        train, labels, features = _summarise_common(data, data.train)
    return DataSummary(
        source=settings.source,
        kind=data.kind,
        task=data.task,
        shape=tuple(data.shape),
        outputs=data.outputs,
        train=train,
        labels=labels,
        features=features,
        columns=data.columns,
    )


def _describe_differences(contents_by_rank: Sequence[Mapping[str, Contents]]) -> str:
    """Return how ranks' splits differ from rank 0's, with the ranks, in words; empty if they do
    not."""
    ranks_by_difference: dict[str, list[int]] = {}
    first = contents_by_rank[0]
    for rank, contents in enumerate(contents_by_rank):
        for split in SPLITS:
            present = contents.get(split, NO_SPLIT)
            expected = first.get(split, NO_SPLIT)
            for difference in _compare_splits(split, present, expected):
                ranks_by_difference.setdefault(difference, []).append(rank)
    return "; ".join(
        f"{difference} (rank {list_first(ranks)})"
        for difference, ranks in ranks_by_difference.items()
    )


def _compare_splits(name: str, present: Contents, expected: Contents) -> Iterator[str]:
    examples, labels, features = present
    expected_examples, expected_labels, expected_features = expected
    # Checksums of other numbers of examples differ, too, and say nothing more.
    if examples != expected_examples:
        yield f"{examples} {name} examples, not {expected_examples}"
        return
    if labels != expected_labels:
        yield f"other {name} labels"
    if features != expected_features:
        yield f"other {name} features"


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
    "train.group_size",
    "train.device",
    "train.init",
    "train.widen",
    "evaluate.",
    "checkpoint.",
    "comm.",
    "output.",
)
"""Beginnings of the names of settings whose change a resumed run neither reports nor refuses."""


def list_changes(checkpoint: Checkpoint, prepared: PreparedRun) -> list[str]:
    """List the allowed differences from a checkpoint's run. Raises ConfigError for any other
    difference.

    Settings in `WITHOUT_EFFECT`, and a program's batch size, are neither listed nor refused.
    """
    comparison = _Comparison()
    _compare_settings(checkpoint, prepared, comparison)
    _compare_data(checkpoint, prepared, comparison)
    _compare_networks(checkpoint, prepared, comparison)
    _compare_own_data(checkpoint, prepared, comparison)
    if comparison.refused:
        raise ConfigError(
            f"{checkpoint.path} belongs to another run: {'; '.join(comparison.refused)}. Give the "
            "same settings, or a new --out."
        )
    return comparison.changed


@dataclass
class _Comparison:
    changed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def _compare_settings(
    checkpoint: Checkpoint, prepared: PreparedRun, comparison: _Comparison
) -> None:
    header = checkpoint.header
    for setting, (saved, current) in header.run.differences(prepared.run).items():
        if setting == "method.optimizer_state":
            saved = _describe_states(header.run)
            current = _describe_states(prepared.run)
            # One run names the default, the other leaves it out.
            if saved == current:
                continue
        text = f"{setting} = {saved} in the checkpoint, {current} here"
        # A file that was moved has the same network, if its source is the same.
        moved = setting == "model.name" and _is_moved(checkpoint, prepared)
        batch_of_a_program = setting == "train.batch" and header.data.task == OWN
        if setting in MAY_CHANGE or moved:
            comparison.changed.append(text)
        elif not setting.startswith(WITHOUT_EFFECT) and not batch_of_a_program:
            comparison.refused.append(text)


def _is_moved(checkpoint: Checkpoint, prepared: PreparedRun) -> bool:
    """Return True if the network's class is the same in another file."""
    saved = checkpoint.architecture
    current = prepared.architecture
    same_class = find_class_name(saved.name) == find_class_name(current.name)
    return same_class and saved.table.source == current.table.source


def _compare_data(checkpoint: Checkpoint, prepared: PreparedRun, comparison: _Comparison) -> None:
    ignored = {"source"}
    # A program may see inputs of several shapes.
    if prepared.dataset.network:
        ignored.add("shape")
    for fact, saved in vars(checkpoint.header.data).items():
        current = getattr(prepared.data_summary, fact)
        if fact not in ignored and saved not in (None, current):
            comparison.refused.append(f"data: {fact} = {saved} in the checkpoint, {current} here")
    # Moments that this job has computed again may differ by roundings.
    saved_targets = checkpoint.targets or ()
    targets = prepared.dataset.targets or ()
    same = len(saved_targets) == len(targets)
    for saved_moment, moment in zip(saved_targets, targets):
        same = same and np.allclose(saved_moment, moment, rtol=1e-5)
    if not same:
        comparison.refused.append(
            "data: targets have another mean or deviation than in the checkpoint"
        )


def _compare_networks(
    checkpoint: Checkpoint, prepared: PreparedRun, comparison: _Comparison
) -> None:
    saved = checkpoint.architecture.table
    current = prepared.architecture.table
    difference = saved.difference(current)
    if difference:
        comparison.refused.append(f"network: {difference} (checkpoint, here)")
    elif current.source and saved.source != current.source:
        comparison.changed.append(
            f"the source of {prepared.run.model.name}, with unchanged parameters"
        )


def _compare_own_data(
    checkpoint: Checkpoint, prepared: PreparedRun, comparison: _Comparison
) -> None:
    """Compare this rank's own data, if there are as many ranks as in the checkpoint."""
    # On another number of ranks, the sites are others.
    if not prepared.run.data.differs or checkpoint.header.ranks != prepared.communicator.size:
        return
    saved = checkpoint.own_data(prepared.store.rank)
    current = summarise_split(prepared.dataset.train)
    if saved not in (None, current):
        comparison.refused.append(
            f"data: examples, labels and features = {saved} in the checkpoint, {current} here"
        )


def _describe_states(run: Run) -> str:
    """Return what becomes of the optimizer state in each of the run's methods, as text."""
    return ", ".join(dict.fromkeys(find_method_spec(name).state(run) for name, _ in run.phases()))


def require_same_subnets(header: Header, run: Run, ranks: int) -> None:
    """Raise ConfigError if a network that is the sum of subnets, one of each rank, resumes on
    another number of ranks or with other shares of the units."""
    if not find_method_spec(run.method.name).sums_outputs:
        return
    if header.ranks != ranks:
        raise ConfigError(
            f"the checkpoint is the sum of {header.ranks} subnets, one of each rank, and this run "
            f"has {ranks} ranks. Resume on {header.ranks}."
        )
    if header.round and header.run.method.shares != run.method.shares:
        raise ConfigError(
            f"method.shares = {run.method.shares}: the checkpoint is the sum of subnets with the "
            f"shares {header.run.method.shares}, which keep their units. Give the same shares."
        )
