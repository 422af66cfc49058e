"""Opens a run's data on this rank, for the comparison of all ranks."""

from collections.abc import Sequence

from istmpi.config import Run
from istmpi.data.dataset import Dataset
from istmpi.data.sources import open_for_training
from istmpi.training.best import Best
from istmpi.training.same_data import Outline, digest_settings

Described = tuple[str, Outline]
"""A digest of a rank's settings, and an outline of its data."""


class Opening:
    """The settings and data of a run on this rank, until all ranks have compared them.

    What a rank tells of them may travel with other facts at the start of a run, because each
    agreement costs a round trip.
    """

    best: Best | None
    """The best network of a run with a validation split."""
    by_rank: Sequence[Described] = ()
    """The answers of all ranks; empty before they have come."""

    def __init__(self, run: Run, rank: int, data: Dataset | None = None):
        """``data`` of a user's program replace the run's."""
        self.run = run
        self._rank = rank
        self._given = data

    def open(self) -> Described:
        """Check the settings, and open the data; return what ranks compare. Raises ConfigError or
        DataError."""
        self.run = run = self.run.with_implied()
        self.data = self._given or open_for_training(run.data, self._rank, run.train.seed)
        self.best = Best.from_run(run, self.data)
        return digest_settings(run), Outline.from_data(run.data, self.data)
