"""The record of a run in its folder: metrics, checkpoints, the network and a summary."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from istmpi.checkpoint.folder import BEST, FOLDER, NETWORK
from istmpi.checkpoint.parts import Copy
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import Saver
from istmpi.checkpoint.search import reach
from istmpi.checkpoint.sight import Place
from istmpi.checkpoint.state import fill, read_own
from istmpi.comm import HangWatch
from istmpi.comm.hang_watch import print_line
from istmpi.comm.ledger import RESENT_BYTES, Sent, add_up, estimate_line_bytes
from istmpi.comm.members import find_members, has_a_rank_each
from istmpi.comm.resends import add_up_hosts
from istmpi.config import Run
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
from istmpi.training.energy import Energy, HostJoules, Meter, choose_energy
from istmpi.training.loop import Training
from istmpi.training.progress import Progress, record_elsewhere
from istmpi.training.watch import BestNetwork, Summary, Watch


def write_settings(folder: RunFolder, run: Run) -> None:
    """Write the settings with which ``run`` is trained in ``folder``. Raises OutputError."""
    folder.write(SETTINGS, run.override({"output.folder": str(folder.path)}).toml())


class RunRecord:
    """Writes a run's metrics, checkpoints, network and summary. Methods are collective, except
    `note`."""

    def __init__(
        self,
        training: Training,
        folder: RunFolder,
        watch: Watch,
        lock: FolderLock | None,
        hang_watch: HangWatch,
        trained: bool,
        place: Place,
    ):
        """``trained``: True if the run resumes from its trained network, so that no round is
        left."""
        self._training = training
        self._folder = folder
        self._watch = watch
        self._lock = lock
        self._communicator = training.communicator
        self._first = training.communicator.rank == 0
        self._hang_watch = hang_watch
        self._trained = trained
        self._place = place
        self._meter = Meter()
        self._last: Progress | None = None
        self._started = training.rounds_done
        """The rounds done when this job began."""
        self._recorded = training.rounds_done
        """The last round that has a line in metrics.jsonl."""
        self._earlier_bytes = training.tally.counts.bytes

    def begin(
        self,
        start: Copy | None,
        inside: Path | None,
        notes: Sequence[str],
        recalled: Sequence[Mapping[str, Any]],
        at_the_end: ExitStack,
    ) -> None:
        """Write settings, and metrics up to ``start``, a checkpoint to resume; report the run's
        start. Collective.

        ``inside``: the path of ``start`` in the folder; None if it is elsewhere. ``recalled``: the
        metrics of the run that ``start`` is from, with which a new folder begins.
        """
        training = self._training
        folder = self._folder
        self._saver = Saver(
            folder.path,
            training.run.checkpoint,
            self._communicator,
            warn=self._warn,
            start=inside,
            communicators_are_made=training.makes_communicators,
            place=self._place,
        )
        at_the_end.callback(self._saver.close)
        if self._first:
            self._begin_files(recalled)
            at_the_end.push(partial(_close, self._watch))
            at_the_end.push(self._hang_watch)  # loggers may take long to close
            self._watch.started(training, folder, self._saver)
            for line in notes:
                self.note(line)
            if start:
                self.note(f"resuming from {start}, {training.position}.")
        # So that --resume auto resumes from there, too.
        if start and not self._saver.newest and not training.done:
            self._saver.save(*training.collect_state())
            self._saver.wait()

    def _begin_files(self, recalled: Sequence[Mapping[str, Any]]) -> None:
        folder = self._folder
        write_settings(folder, self._training.run)
        folder.keep_metrics(self._training.rounds_done)
        folder.begin_metrics(recalled)

    def note(self, message: str) -> None:
        if self._first:
            self._watch.noticed(message)

    def _warn(self, message: str) -> None:
        """Note a message; other ranks than the first have no watch, so they print it."""
        if self._first:
            self.note(message)
        else:
            print_line(message)

    def add(self, progress: Progress) -> None:
        """Record a round, or the scores of a round that is recorded already. Collective."""
        self._last = progress
        self._meter.read()
        training = self._training
        if self._first:
            self._write_line(progress)
            self._watch.progressed(progress)
            note = training.evaluator.take_note()
            if note:
                self.note(note)
        best = training.best
        if best and progress.validation and best.round == progress.round:
            if best.saved:
                with training.clock("save"):
                    self._save_network(BEST)
        # Without a last round, an overdue evaluation was made up for, and the round is saved.
        if training.checkpoint_due and progress.last_round:
            with training.clock("save"):
                self._saver.save(*training.collect_state(may_save=self._require_lock))

    def _write_line(self, progress: Progress) -> None:
        try:
            if progress.round == self._recorded:
                self._folder.amend(progress.scores())
            else:
                line = progress.record()
                if self._recorded == self._started and self._started:
                    line["resumed_from"] = self._started
                self._folder.append(line)
            self._recorded = progress.round
        except OutputError as error:
            # Lines in memory are written with the next one; one note is enough.
            if len(self._folder.pending) <= 1:
                self.note(f"{error} The run continues and keeps its metrics in memory.")

    def save(self, network: bool) -> None:
        """Save the trained network if ``network``. For a stopped run, save a checkpoint and raise
        StoppedError."""
        training = self._training
        with training.clock("save"):
            if not training.done:
                state = training.collect_state(may_save=self._require_lock)
                path = self._saver.save_now(*state)
                again = "command with --resume auto"
                if training.dataset.network:
                    again = "program with resume='auto'"
                error = StoppedError(
                    f"stopped by {training.stop.reason}, {training.position}; saved in {path}. "
                    f"{training.stop.cure} {again} to continue."
                )
                error.everywhere = True
                raise error
            if network:
                self._save_network(NETWORK)

    def _save_network(self, name: str) -> None:
        """Save the network for prediction in a file of the folder."""
        state = self._training.collect_state(calibrated=True, may_save=self._require_lock)
        self._saver.save_now(*state, path=self._folder.path / name)

    def save_diverged(self, error: DivergedError) -> None:
        """Save the last network, from before the divergence, if finite; name its file, or the
        fault, in ``error``."""
        network = self._folder.path / NETWORK
        training = self._training
        fault = training.not_finite()
        if fault:
            error.args = (f"the network was not finite {training.position}: {fault}; not saved.",)
        else:
            self._saver.save_now(*training.collect_state(calibrated=True), path=network)
            error.args = (f"{error} They are saved in {network}.",)

    def end(self, network: bool = True) -> Summary:
        """Save the trained network if ``network``; write and report the summary. Raises
        StoppedError if stopped."""
        # A trained network that is there already keeps its bytes.
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
        training = self._training
        communicator = self._communicator
        if last is None:  # no round was left in this job
            score = None
            if not training.dataset.network:
                score = training.evaluate()
            last = training.progress(score)
        best = _score_best(training, self._folder, last, self.note)
        # All that ranks tell each other for the summary travels together.
        messages = communicator.allgather(
            (
                dict(training.clock.seconds),
                communicator.ledger.sent,
                communicator.ledger.resends.count(),
                self._meter.describe(),
            )
        )
        seconds_by_rank, sent_by_rank, resent, joules_by_rank = zip(*messages, strict=True)
        seconds = _take_means(seconds_by_rank)
        sent = add_up(sent_by_rank)
        summary = Summary(
            folder=self._folder.path,
            ranks=communicator.size,
            score_name=training.score_name,
            last=replace(last, last_round=None, slowest=None),
            seconds=seconds,
            sent=sent,
            earlier_bytes=self._earlier_bytes,
            line_bytes=self._estimate_line_bytes(sent),
            resent_bytes=self._estimate_resent_bytes(resent),
            data=training.data_summary.fingerprint,
            ended=training.ended,
            best=best,
            energy=self._choose_energy(joules_by_rank, seconds),
            slowest=last.slowest,
        )
        self._write_summary(summary)
        return summary

    def _write_summary(self, summary: Summary) -> None:
        with self._communicator.agreed():
            if self._first:
                self._complete_last_line(summary)
                text = json.dumps(asdict(summary, dict_factory=known), default=str, indent=2)
                # Lists of numbers, such as a confusion's rows, on a line each.
                text = re.sub(r"\[[^][{}\"]*\]", lambda match: " ".join(match[0].split()), text)
                self._folder.write(SUMMARY, text + "\n")

    def _complete_last_line(self, summary: Summary) -> None:
        """Add to this job's last line what its evaluation and the save after it have sent."""
        if self._recorded == self._started or self._folder.pending:
            return
        try:
            self._folder.amend(record_elsewhere(summary.sent_elsewhere))
        except DataError as error:  # another program has changed the file
            self.note(str(error))

    def _estimate_line_bytes(self, sent: Mapping[str, Sent]) -> int | None:
        communicator = self._communicator
        if communicator.size == 1 or not has_a_rank_each(communicator):
            return None
        nbytes = sum(purpose.bytes for purpose in sent.values())
        calls = sum(purpose.calls for purpose in sent.values())
        return estimate_line_bytes(nbytes, calls, communicator.size)

    def _estimate_resent_bytes(self, by_rank: Sequence[int | None]) -> int | None:
        segments = add_up_hosts(by_rank, find_members(self._communicator))
        if segments is None:
            return None
        return segments * RESENT_BYTES

    def _choose_energy(
        self, by_rank: Sequence[HostJoules], seconds: Mapping[str, float]
    ) -> Energy | None:
        # Slurm is asked once; only rank 0's summary is written.
        if not self._first:
            return None
        return choose_energy(by_rank, self._training.run.train.watts, sum(seconds.values()))

    def _require_lock(self) -> None:
        """Raise if this rank's folder has another lock: a job may have taken it from a run that
        hung."""
        if self._lock:
            self._lock.require()


def _take_means(seconds_by_rank: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the means over ranks of the phases that rank 0 has."""
    means = {}
    for phase in seconds_by_rank[0]:
        spent = sum(seconds.get(phase, 0.0) for seconds in seconds_by_rank)
        means[phase] = spent / len(seconds_by_rank)
    return means


def _score_best(
    training: Training, folder: RunFolder, last: Progress, note: Callable[[str], None]
) -> BestNetwork | None:
    """Return the saved best network with its test score, or None without one. Collective; may
    replace weights.

    A file that cannot be scored is a note: the run itself has ended well, and its network is saved.
    """
    best = training.best
    path = folder.path / BEST
    if best is None or not best.saved:
        return None
    if best.round is None or best.score is None:
        return None
    if not training.communicator.broadcast_from_root(path.is_file()):
        return None
    score = last.score
    if best.round != last.round:
        try:
            with training.clock("evaluate"):
                score = _score_file(training, path, best.round, note)
        except (UserError, DivergedError) as error:
            note(f"{error} The best network, of round {best.round}, is not scored.")
            return None
    assert score is not None, "the last round is always evaluated"
    return BestNetwork(path, best.round, best.score, score)


def _score_file(training: Training, path: Path, round: int, note: Callable[[str], None]) -> Score:
    """Score the network of a round in a file on the test split, after a look at its checksums and
    its weights. Collective; replaces weights."""
    copy = reach(path, training.communicator, note, path.parent / FOLDER)
    with training.communicator.agreed(), open_checkpoint(copy) as checkpoint:
        copy.discard()
        if checkpoint.header.round != round:
            raise DataError(f"{path} is of round {checkpoint.header.round}.")
        # A network to deploy has no optimizer state, which `fill` would look for.
        training.store.drop_slots(except_for=())
        fill(checkpoint, training.store)
        fault = training.store.not_finite()
        if fault:
            raise DataError(f"{path}: {fault}; weights must be finite.")
        values_of = read_own(checkpoint)
    training.arrange(round - 1, values_of)
    return training.evaluator.score()


def _close(watch: Watch, kind: type | None, error: BaseException | None, traceback: object) -> None:
    if error is None or isinstance(error, IstmpiError):
        watch.closed(error)
