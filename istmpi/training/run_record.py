"""The record of a run in its folder: metrics, checkpoints, the network and a summary."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from istmpi.checkpoint.folder import BEST, NETWORK, listed, require_valid
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import Saver
from istmpi.checkpoint.state import fill
from istmpi.comm import HangWatch
from istmpi.errors import (
    DataError,
    DivergedError,
    IstmpiError,
    OutputError,
    StoppedError,
    UserError,
)
from istmpi.evaluation.evaluator import Score
from istmpi.lock import FolderLock
from istmpi.record import SETTINGS, SUMMARY, RunFolder, known
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.watch import BestNetwork, Summary, Watch


class RunRecord:
    def __init__(
        self,
        training: Training,
        folder: RunFolder,
        watch: Watch,
        lock: FolderLock | None,
        hang_watch: HangWatch,
        trained: bool,
    ):
        """``trained``: True if the run resumes from its trained network, so that no round is
        left."""
        self._training, self._folder, self._watch, self._lock = training, folder, watch, lock
        self._communicator, self._first = training.communicator, training.communicator.rank == 0
        self._hang_watch, self._trained, self._last = hang_watch, trained, None
        self._recorded = training.rounds_done
        """The last round that has a line in metrics.jsonl."""

    def begin(
        self,
        start: Path | None,
        notes: Sequence[str],
        recalled: Sequence[Mapping[str, Any]],
        at_the_end: ExitStack,
    ) -> None:
        """Write settings, and metrics up to ``start``, a checkpoint to resume; report the run's
        start. Collective.

        ``recalled``: the metrics of the run that ``start`` is from, with which a new folder begins.
        """
        training, folder = self._training, self._folder
        saved = listed(folder.path) if self._first and start else ()
        inside = self._communicator.broadcast_from_root(
            next((path for path in saved if path.samefile(start)), None)
        )
        settings, communicates = training.run.checkpoint, training.makes_communicators
        self._saver = Saver(
            folder.path, settings, self._communicator, self.note, inside, communicates
        )
        at_the_end.callback(self._saver.close)
        if self._first:
            folder.write(
                SETTINGS, training.run.override({"output.folder": str(folder.path)}).toml()
            )
            folder.keep_metrics(training.rounds_done)
            folder.begin_metrics(recalled)
            at_the_end.push(partial(_close, self._watch))
            at_the_end.push(self._hang_watch)  # loggers may take long to close
            self._watch.started(training, folder, self._saver)
            for line in notes:
                self.note(line)
            if start:
                self.note(f"resuming from {start}, {training.position}.")
        if start and not self._saver.newest and not training.done:
            self._saver.save(*training.state())  # so that --resume auto resumes from there, too
            self._saver.wait()

    def note(self, message: str) -> None:
        if self._first:
            self._watch.noticed(message)

    def add(self, progress: Progress) -> None:
        """Record a round, or the scores of a round that is recorded already. Collective."""
        self._last = progress
        training, settings = self._training, self._training.run.checkpoint
        if self._first:
            try:
                if progress.round == self._recorded:
                    self._folder.amend(progress.scores())
                else:
                    self._folder.append(progress.record())
                self._recorded = progress.round
            except OutputError as error:
                if len(self._folder.pending) <= 1:
                    self.note(f"{error} The run continues and keeps its metrics in memory.")
            self._watch.progressed(progress)
            if note := training.evaluator.take_note():
                self.note(note)
        if settings.best and progress.validation and training.best.round == progress.round:
            with training.clock("save"):
                self._require_lock()
                self._saver.save_now(*training.state(calibrated=True), self._folder.path / BEST)
        if training.checkpoint_due and progress.last_round:
            with training.clock("save"):
                self._require_lock()
                self._saver.save(*training.state())

    def save(self, network: bool) -> None:
        """Save the trained network if ``network``. For a stopped run, save a checkpoint and raise
        StoppedError."""
        training = self._training
        with training.clock("save"):
            self._require_lock()
            if not training.done:
                path = self._saver.save_now(*training.state())
                again = (
                    "program with resume='auto'"
                    if training.dataset.network
                    else "command with --resume auto"
                )
                error = StoppedError(
                    f"stopped by {training.stop.reason}, {training.position}; saved in {path}. "
                    f"{training.stop.cure} {again} to continue."
                )
                error.everywhere = True
                raise error
            if network:
                self._saver.save_now(*training.state(calibrated=True), self._folder.path / NETWORK)

    def save_diverged(self, error: DivergedError) -> None:
        """Save the last network, from before the divergence, if finite; name its file, or the
        fault, in ``error``."""
        network = self._folder.path / NETWORK
        if odd := self._training.not_finite():
            error.args = (
                f"the network was not finite {self._training.position}: {odd}; not saved.",
            )
        else:
            self._saver.save_now(*self._training.state(calibrated=True), network)
            error.args = (f"{error} They are saved in {network}.",)

    def end(self, network: bool = True) -> Summary:
        """Save the trained network if ``network``; write and report the summary. Raises
        StoppedError if stopped."""
        self.save(network and not self._trained)
        summary = self._summarise(self._last)
        self._hang_watch.close()
        if self._first:
            self._watch.finished(summary)
        return summary

    def add_score(self, score: Score) -> Summary:
        """Add a score that was computed after the end to the last round's metrics and to the
        summary. Collective."""
        last = self._last or self._training.progress()
        self._last = replace(last, score=score, score_name=self._training.score_name)
        with self._communicator.agreed():
            if self._first:
                lock = FolderLock(self._folder.path, self.note)
                self._folder.keep_metrics(self._last.round - 1)
                self._folder.append(self._last.record())
                lock.release()
        return self._summarise(self._last)

    def _summarise(self, last: Progress | None) -> Summary:
        training, communicator = self._training, self._communicator
        per_rank = communicator.allgather(dict(training.clock.seconds))
        phases = {
            phase: sum(seconds.get(phase, 0.0) for seconds in per_rank) / len(per_rank)
            for phase in per_rank[0]
        }
        last = last or training.progress(None if training.dataset.network else training.evaluate())
        best = (
            _best(training, self._folder, last, self.note) if training.run.checkpoint.best else None
        )
        summary = Summary(
            self._folder.path,
            communicator.size,
            training.score_name,
            replace(last, last_round=None, slowest=None),
            phases,
            training.data_summary.fingerprint,
            training.ended,
            best,
            last.slowest,
        )
        with communicator.agreed():
            if self._first:
                text = json.dumps(asdict(summary, dict_factory=known), default=str, indent=2)
                self._folder.write(SUMMARY, text + "\n")
        return summary

    def _require_lock(self) -> None:
        with self._communicator.agreed():
            if self._lock:
                self._lock.require()


def _best(
    training: Training, folder: RunFolder, last: Progress, note: Callable[[str], None]
) -> BestNetwork | None:
    """Return the saved best network with its test score, or None without one. Collective; may
    replace weights.

    A file that cannot be scored is a note: the run itself has ended well, and its network is saved.
    """
    best, path = training.best, folder.path / BEST
    if best.round is None or not training.communicator.broadcast_from_root(path.is_file()):
        return None
    score = last.score
    if best.round != last.round:
        try:
            with training.clock("evaluate"):
                score = _score_of_best(training, path)
        except (UserError, DivergedError) as error:
            note(f"{error} The best network, of round {best.round}, is not scored.")
            return None
    return BestNetwork(path, best.round, best.score, score)


def _score_of_best(training: Training, path: Path) -> Score:
    """Score the best network on the test split, after a look at its checksums and its weights.
    Collective."""
    require_valid(path, training.communicator)
    with training.communicator.agreed(), open_checkpoint(path) as checkpoint:
        if checkpoint.header.round != training.best.round:
            raise DataError(f"{path} is of round {checkpoint.header.round}.")
        training.store.drop_slots(except_for=())
        fill(checkpoint, training.store)
        if odd := training.store.not_finite():
            raise DataError(f"{path}: {odd}; weights must be finite.")
    training.arrange(training.best.round - 1)
    return training.evaluator.score()


def _close(watch: Watch, kind: type | None, error: BaseException | None, traceback: object) -> None:
    if error is None or isinstance(error, IstmpiError):
        watch.closed(error)
