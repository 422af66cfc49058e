"""Callbacks for the events of a run, and the summary of a run."""

from dataclasses import dataclass, field
from pathlib import Path

from istmpi.checkpoint.saver import Saver
from istmpi.comm.ledger import ROUNDS, Sent
from istmpi.errors import IstmpiError
from istmpi.evaluation.evaluator import Score
from istmpi.record import RunFolder
from istmpi.training.energy import Energy
from istmpi.training.loop import Training
from istmpi.training.progress import Progress, Slowest


@dataclass(frozen=True)
class BestNetwork:
    """The saved network of the round with the best validation score, and its test score."""

    path: Path
    round: int
    validation: float
    score: Score


@dataclass(frozen=True)
class Summary:
    folder: Path
    ranks: int
    score_name: str
    last: Progress
    seconds: dict[str, float]
    """The job's seconds by phase, the mean over ranks."""
    sent: dict[str, Sent] = field(default_factory=dict)
    """Bytes and calls of all ranks in this job, by purpose."""
    earlier_bytes: int = 0
    """The part of ``last.bytes`` that earlier jobs of the run sent."""
    line_bytes: int | None = None
    """About how many bytes of this job travelled between hosts, with headers; None unless there are
    several hosts of one rank each. Without `resent_bytes`."""
    resent_bytes: int | None = None
    """About how many bytes TCP of the job's hosts sent again meanwhile, for all programs, with
    headers; None for one host, and where a host does not count."""
    data: str = ""
    """A fingerprint of the training data; empty if each rank has its own data."""
    ended: str = ""
    best: BestNetwork | None = None
    energy: Energy | None = None
    """The energy of this job; None if nothing counts it and train.watts is not set."""
    slowest: Slowest | None = None
    """The rank for which other ranks waited in this job; None if the waiting was below
    `WORTH_SAYING`."""

    @property
    def sent_elsewhere(self) -> dict[str, int]:
        """Bytes of all ranks in this job outside rounds, by purpose."""
        return {purpose: sent.bytes for purpose, sent in self.sent.items() if purpose != ROUNDS}

    @property
    def examples_per_second(self) -> float:
        """Examples a second of training; 0 if no time passed on the run's clock."""
        if not self.last.seconds:
            return 0.0
        return self.last.examples / self.last.seconds


class Watch:
    """Follows a run on rank 0 while it is carried out; override the methods of interest."""

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        """Take note that the run is checked and set up."""

    def progressed(self, progress: Progress) -> None:
        """Take note that a round is done."""

    def noticed(self, message: str) -> None:
        """Take a message for the user that does not end the run."""

    def finished(self, summary: Summary) -> None:
        """Take note that the run is done."""

    def already_finished(self, folder: RunFolder) -> None:
        """Take note that an earlier job has done the run: nothing was left to do."""

    def closed(self, error: IstmpiError | None) -> None:
        """Take note that a started run is over. ``error`` ended it, e.g. a StoppedError; None if it
        is done."""
