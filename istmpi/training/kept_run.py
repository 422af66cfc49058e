"""A run in its folder, from first round to end: record and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from istmpi.checkpoint.folder import BEST, NETWORK
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import Saver
from istmpi.checkpoint.state import fill
from istmpi.comm import HangWatch
from istmpi.errors import DataError, DivergedError, IstmpiError, OutputError, StoppedError
from istmpi.lock import FolderLock
from istmpi.record import METRICS, SETTINGS, SUMMARY, RunFolder, known
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.trace import profiled
from istmpi.training.watch import BestNetwork, Summary, Watch


class KeptRun:
    """A run that is set up, in its folder: trained to its end, with record and checkpoints."""

    def __init__(
        self,
        training: Training,
        folder: RunFolder,
        watch: Watch,
        lock: FolderLock | None,
        at_the_end: ExitStack,
        newest: Path | None,
        roll_call: HangWatch,
    ):
        """``newest``: the checkpoint in the folder that the run resumes from, if it does."""
        self._training, self._folder, self._watch, self._roll_call = training, folder, watch, roll_call
        self._communicator, self._lock, self._at_the_end = training.communicator, lock, at_the_end
        self._first = self._communicator.rank == 0
        settings, communicates = training.run.checkpoint, training.makes_communicators
        self._saver = Saver(folder.path, settings, self._communicator, self._note, newest, communicates)
        at_the_end.callback(self._saver.close)

    def _note(self, message: str) -> None:
        if self._first:
            self._watch.noticed(message)

    def begin(self, began: Sequence[str], start: Path | None, profile: int | None) -> None:
        """Write down what is to be done, and tell of it."""
        training, folder = self._training, self._folder
        if self._first:
            folder.write(SETTINGS, training.run.override({"output.folder": str(folder.path)}).toml())
            folder.keep_metrics(training.rounds_done)
            self._at_the_end.push(partial(_close, self._watch))
            # Loggers may take long to come to an end.
            self._at_the_end.push(self._roll_call)
            self._watch.started(training, folder, self._saver)
            for line in began:
                self._note(line)
            if start:
                self._note(f"resuming from {start}, {training.position}.")
        self._start, self._profile = start, profile

    def run(self, save_network: bool) -> Summary:
        """Train to the end, and return how it ended; ``save_network``: it is not saved yet. Collective."""
        training, folder, communicator = self._training, self._folder, self._communicator
        saver = self._saver
        if self._start and not saver.newest and not training.done:
            saver.save(*training.state())  # so that --resume auto goes on from there, too
            saver.wait()
        rounds = profiled(training, self._profile, folder, self._note)
        progress = self._train(rounds, save_network)
        per_rank = communicator.allgather(dict(training.clock.seconds))
        phases = {phase: sum(seconds.get(phase, 0.0) for seconds in per_rank) / len(per_rank) for phase in per_rank[0]}
        last = progress or training.progress(training.evaluate())
        slowest, last = last.slowest, replace(last, last_round=None, slowest=None)
        best = _best(training, folder, last) if training.run.checkpoint.best else None
        names = folder.path, communicator.size, training.score_name
        more = {"slowest": slowest}
        summary = Summary(*names, last, phases, training.data_summary.fingerprint, training.ended, best, **more)
        with communicator.agreed():
            if self._first:
                folder.write(SUMMARY, json.dumps(asdict(summary, dict_factory=known), default=str, indent=2) + "\n")
        self._roll_call.close()
        if self._first:
            self._watch.finished(summary)
        return summary

    def _require_lock(self) -> None:
        with self._communicator.agreed():
            if self._lock:
                self._lock.require()

    def _train(self, rounds: Iterator[Progress], save_network: bool) -> Progress | None:
        """Train to the end, with record and checkpoints; what is known after the last round, if there was one."""
        training, folder, saver, watch = self._training, self._folder, self._saver, self._watch
        run, network, progress = training.run, folder.path / NETWORK, None
        try:
            for progress in rounds:
                if self._first:
                    try:
                        folder.append(progress.record())
                    except OutputError as error:
                        if len(folder.pending) == 1:
                            watch.noticed(f"{error} The run continues; its metrics are kept until they can be.")
                    watch.progressed(progress)
                if run.checkpoint.best and progress.validation and training.best.round == progress.round:
                    with training.clock("save"):
                        self._require_lock()
                        saver.save_now(*training.state(calibrated=True), folder.path / BEST)
                if training.checkpoint_due:
                    with training.clock("save"):
                        self._require_lock()
                        saver.save(*training.state())
            with training.clock("save"):
                self._require_lock()
                if not training.done:
                    path = saver.save_now(*training.state())
                    error = StoppedError(
                        f"stopped by {training.stop.reason}, {training.position}; saved in {path}. "
                        f"{training.stop.cure} command with --resume auto resumes it."
                    )
                    error.everywhere = True
                    raise error
                if save_network:
                    saver.save_now(*training.state(calibrated=True), network)
        except DivergedError as error:
            if odd := training.not_finite():
                error.args = (f"the network was not finite {training.position}: {odd}. It is not saved.",)
            else:
                saver.save_now(*training.state(calibrated=True), network)
                error.args = (f"{error} They are in {network}.",)
            raise
        return progress


def recall_scores(training: Training, folder: RunFolder, note: Callable[[str], None]) -> None:
    """Let a run that goes on know the scores on the validation split that its metrics tell of. Collective.

    They begin anew where the network that is kept is not that of the best one.
    """
    best, communicator, path = training.best, training.communicator, folder.path / BEST
    if not best:
        return
    with communicator.agreed():
        first = communicator.rank == 0
        lines = folder.metrics() if first and (folder.path / METRICS).is_file() else []
        kept = _round_of(path) if first and training.run.checkpoint.best else None
    lines, kept = communicator.broadcast_from_root((lines, kept))
    best.take_metrics(lines, training.rounds_done)
    if training.run.checkpoint.best and best.round not in (None, kept):
        note(f"{path} is not of round {best.round}, which scored best so far: the best begins anew.")
        best.forget()


def _round_of(path: Path) -> int | None:
    try:
        with open_checkpoint(path) as checkpoint:
            return checkpoint.header.round
    except DataError:
        return None


def _best(training: Training, folder: RunFolder, last: Progress) -> BestNetwork | None:
    """Return the score of the kept best network on the test split. Collective, the last thing of all."""
    best, path = training.best, folder.path / BEST
    if best.round is None or not training.communicator.broadcast_from_root(path.is_file()):
        return None
    score = last.score
    if best.round != last.round:
        with training.clock("evaluate"):
            with training.communicator.agreed(), open_checkpoint(path) as checkpoint:
                training.store.drop_slots(except_for=())
                fill(checkpoint, training.store)
            score = training.evaluator.score()
    return BestNetwork(path, best.round, best.score, score)


def _close(watch: Watch, kind: type | None, error: BaseException | None, traceback: object) -> None:
    if error is None or isinstance(error, IstmpiError):
        watch.closed(error)
