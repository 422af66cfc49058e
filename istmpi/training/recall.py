"""Reads what a resumed run has recorded: scores that decide its end, and an evaluation that a stop
had put off."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from istmpi.checkpoint.folder import BEST, FOLDER
from istmpi.checkpoint.parts import Copy
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.search import reach
from istmpi.comm.root import ask_root
from istmpi.errors import UserError
from istmpi.record import METRICS, RunFolder, find_run
from istmpi.training.loop import Training
from istmpi.training.progress import Counts, record_loss

Line = Mapping[str, Any]


class Recollection:
    """The metrics of the run that resumes from the checkpoint ``start``, if any.

    They are those of ``folder`` or, if it has none, of the folder of ``start``. Metrics that are
    not this run's are not used, with one note: the best score then starts over. It also does if the
    saved best network is missing, damaged, or not from the best round.
    """

    def __init__(
        self,
        training: Training,
        folder: RunFolder,
        start: Copy | None,
        note: Callable[[str], None],
    ):
        self._training = training
        self._folder = folder
        self._start = start
        self._note = note
        self.lines: list[Line] = []
        """The metrics up to the checkpoint, on rank 0."""

    def exchange(self) -> None:
        """Take up scores that decide if a run is done, before anything else. Collective."""
        if self._start and self._training.best:
            self.take_up(ask_root(self._training.communicator, self.read))
            self._start = None

    def read(self) -> list[Line]:
        """Return the metrics that all ranks need, on rank 0: the last line, or all lines if a best
        network is kept; nothing after `exchange`."""
        if self._start is None:
            return []
        training = self._training
        counts = training.tally.counts
        lines = _read(self._folder, self._start.path, counts.rounds)
        problem = find_misfit(lines, counts)
        if problem:
            self._note(f"{self._folder.path / METRICS}: {problem}; its scores are not used.")
            return []
        self.lines = lines
        if training.best:
            return lines
        return lines[-1:]

    def take_up(self, lines: Sequence[Line]) -> None:
        """Take up what rank 0 has `read`. Collective.

        An evaluation that was due when the run stopped becomes `Training.overdue`.
        """
        if not lines:
            return
        training = self._training
        # decision 64: a stop puts an evaluation off, but does not drop it.
        training.overdue = training.evaluation_due and not _is_scored(lines[-1])
        best = training.best
        if best:
            best.take_metrics(lines, training.rounds_done)
        # The scores would decide about a network that is not there.
        if best and best.saved and best.round is not None:
            path = self._folder.path / BEST
            if not _fits(path, lines[best.round - 1], training, self._note):
                self._note(
                    f"{path} is not from this run's best round, {best.round}, or is damaged; the "
                    "best score starts over."
                )
                best.forget()


def find_misfit(lines: Sequence[Line], counts: Counts) -> str:
    """Return why lines are not those of the rounds up to a checkpoint with these counts; an empty
    text if they are."""
    # A line that is lost or doubled would shift the count of evaluations for train.patience.
    if [line["round"] for line in lines] != [*range(1, counts.rounds + 1)]:
        return f"it does not have each of the rounds 1 to {counts.rounds} once, in order"
    if not lines:
        return ""
    last = lines[-1]
    expected = {"loss": record_loss(counts.loss), "examples": counts.examples}
    for name, value in expected.items():
        if last.get(name) != value:
            return (
                f"round {counts.rounds} has the {name} {last.get(name)}, but {value} in the "
                "checkpoint"
            )
    return ""


def _read(folder: RunFolder, start: Path, rounds: int) -> list[Line]:
    # A run that resumes into a new folder goes on with the lines of the run before.
    for place in (folder, RunFolder(find_run(start))):
        if not (place.path / METRICS).is_file():
            continue
        lines = place.metrics()
        if lines:
            return [line for line in lines if line["round"] <= rounds]
    return []


def _is_scored(line: Line) -> bool:
    return any(name in line for name in ("score", "validation_score"))


def _fits(path: Path, line: Line, training: Training, note: Callable[[str], None]) -> bool:
    """Return True if a saved network is valid, and has the round and the loss of a line of the
    record. Collective."""
    # A missing or damaged file is no error of the run: its best network is found again.
    try:
        copy = reach(path, training.communicator, note, path.parent / FOLDER)
        with training.communicator.agreed(), open_checkpoint(copy) as checkpoint:
            header = checkpoint.header
            copy.discard()
            same_loss = record_loss(header.loss) == line.get("loss")
            return same_loss and header.round == line["round"]
    except UserError:
        return False
