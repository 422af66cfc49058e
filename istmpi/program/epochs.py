"""Counts a program's rounds in epochs: passes over the data of its loader."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from istmpi.code import shown
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.config.methods import MethodSpec
from istmpi.data.batches import count_rows
from istmpi.errors import ConfigError
from istmpi.foreign import is_figure
from istmpi.methods.local_training import LocalTraining
from istmpi.optim.course import Course
from istmpi.program.loaders import draws_at_random
from istmpi.units import list_first


@dataclass(frozen=True)
class Passes:
    """The loader whose examples count as an epoch, and how a round takes its batches.

    ``examples``: those of the rank that has most.
    """

    loader: Iterable[Any]
    accumulate: int
    local: bool
    examples: int

    def settings(self, method: MethodSpec, epochs: float) -> dict[str, Any]:
        """Return the settings of a run of so many ``epochs``."""
        chosen: dict[str, Any] = {"train.epochs": epochs}
        # fedavg counts its passes with the batch that `Distributed` got.
        if not method.in_passes:
            batch: Any = getattr(self.loader, "batch_size", 1)
            chosen["train.batch"] = batch * self.accumulate
        return chosen


def open_passes(
    loader: Iterable[Any],
    accumulate: int,
    local: bool,
    method: LocalTraining,
    communicator: Communicator,
) -> Passes:
    """Count the examples of a rank's pass over ``loader``. Collective.

    Raises ConfigError on every rank for another loader than `draws_at_random` allows, or if ranks
    have different numbers of examples without ``local``.
    """
    with communicator.agreed():
        if not isinstance(accumulate, int) or accumulate < 1:
            raise ConfigError(
                f"accumulate = {shown(accumulate)} must be a whole number of at least 1."
            )
        if not draws_at_random(loader):
            raise ConfigError(
                f"epochs cannot count the examples of {type(loader).__name__}. Give a DataLoader "
                "of a map-style data set with one batch size, or use job.rounds(n)."
            )
        dataset: Any = loader.dataset
        size = len(dataset), loader.batch_size
    sizes = communicator.allgather(size)
    with communicator.agreed():
        # With local data, only the batch size must be the same.
        if len({size[local:] for size in sizes}) > 1:
            raise ConfigError(
                f"epochs: ranks have different (examples, batch size): {list_first(sizes)}. Give "
                "all ranks the same; with local=True, the numbers of examples may differ."
            )
    return Passes(loader, accumulate, local, _count_most(sizes, local, method))


def _count_most(sizes: list[tuple[int, int | None]], local: bool, method: LocalTraining) -> int:
    if local:
        return max(length for length, _ in sizes)
    length, _ = sizes[0]
    # Ranks that add up outputs take the same batches.
    if method.spec.sums_outputs:
        return length
    return max(count_rows("sharded", range(length), len(sizes), method.seed))


def require_epochs(epochs: Any) -> None:
    if not is_figure(epochs, 0.0) or not epochs:
        raise ConfigError(f"epochs = {shown(epochs)} must be a number above 0.")


class Measured(Protocol):
    """A run that may be measured in epochs."""

    run: Run
    course: Course
    most_examples: dict[int, int]


def count_epochs(training: Measured, rounds: int) -> Fraction:
    """Return the passes over the data of the rank that has most, after ``rounds`` rounds. Raises
    ConfigError for a run that is not measured in epochs."""
    if not training.most_examples:
        raise ConfigError("round.epoch and round.ends_epoch go with job.epochs, not job.rounds.")
    return training.run.count_epochs(training.most_examples, rounds)
