"""A run in its folder, from first round to end: record, checkpoints, and going on without ranks that are lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from istmpi.checkpoint.folder import BEST, NETWORK, newest_valid
from istmpi.checkpoint.initial import begin_with
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import Saver
from istmpi.checkpoint.state import fill
from istmpi.comm import RollCall, within_deadlines
from istmpi.engine.store import ParameterStore
from istmpi.errors import DataError, DivergedError, IstmpiError, OutputError, StoppedError
from istmpi.lock import FolderLock, text_of_this_process
from istmpi.record import METRICS, SETTINGS, SUMMARY, RunFolder, known
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.survival import go_on
from istmpi.training.trace import profiled
from istmpi.training.watch import BestNetwork, Summary, Watch


class KeptRun:
    """A run that is set up, in its folder: trained to its end, also without ranks that are lost on the way."""

    def __init__(
        self,
        training: Training,
        folder: RunFolder,
        watch: Watch,
        heir: Callable[[], Watch],
        lock: FolderLock | None,
        at_the_end: ExitStack,
        newest: Path | None,
        roll_call: RollCall,
        call_roll: Callable[[Callable[[str], None]], RollCall],
    ):
        """``newest``: the checkpoint in the folder that the run goes on from, if it does."""
        self._roll_call, self._call_roll = roll_call, call_roll
        self._training, self._folder, self._watch, self._heir = training, folder, watch, heir
        self._communicator, self._lock, self._at_the_end = training.communicator, lock, at_the_end
        self._leads = self._first
        """Whether this rank keeps the record."""
        self._own = lock.text if lock else text_of_this_process()
        # Of all, for a further one may be lost between taking the folder and telling of it.
        self._locks = self._communicator.allgather(self._own) if training.survival else []
        self._saver = self._new_saver(newest)

    @property
    def _first(self) -> bool:
        return self._communicator.rank == 0

    def _note(self, message: str) -> None:
        if self._first:
            self._watch.noticed(message)

    def _new_saver(self, newest: Path | None) -> Saver:
        training, settings = self._training, self._training.run.checkpoint
        if training.survival and settings.writer == "auto":
            settings = replace(settings, writer="direct")  # HDF5 cannot leave a call that a lost rank does not come to
        communicates = training.makes_communicators
        saver = Saver(self._folder.path, settings, self._communicator, self._note, newest, communicates)
        self._at_the_end.callback(saver.close)
        return saver

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

    def out(self, save_network: bool) -> Summary:
        """Train to the end, and say how it ended; ``save_network``: it is not saved yet."""
        communicator, surviving = self._communicator, self._training.survival
        lost, told = False, False
        while True:
            try:
                if lost:
                    with within_deadlines(communicator, self._training.run.comm.patience, self._folder.path):
                        self._go_on(told)
                summary = self._to_the_end(save_network, lost)
                if surviving:
                    communicator.barrier()  # unlike the agreement it leaves the core to the rank that still writes
                if not surviving or communicator.agree(True):
                    return summary
                told = True
            except IstmpiError as error:
                if not (surviving and error.everywhere) or communicator.agree(True):
                    raise
                told = True
            except Exception as error:
                if not (surviving and communicator.tells_of_a_loss(error)):
                    raise
                told = False
            lost = True

    def _to_the_end(self, save_network: bool, lost: bool) -> Summary:
        training, folder, communicator = self._training, self._folder, self._communicator
        saver = self._saver
        if self._start and not saver.newest and not training.done:
            saver.save(*training.state())  # so that --resume auto goes on from there, too
            saver.wait()
        if lost and training.checkpoint_due and not training.untold:
            saver.save(*training.state())
        rounds = profiled(training, None if lost else self._profile, folder, self._note)
        progress = self._train(rounds, save_network)
        per_rank = communicator.allgather(dict(training.clock.seconds))
        phases = {phase: sum(seconds.get(phase, 0.0) for seconds in per_rank) / len(per_rank) for phase in per_rank[0]}
        last = progress or training.progress(training.evaluate())
        slowest, last = last.slowest, replace(last, last_round=None, slowest=None, losses=())
        best = _best(training, folder, last) if training.run.checkpoint.best else None
        names = folder.path, communicator.size, training.score_name
        of = {"slowest": slowest, "losses": tuple(training.losses) or None}
        summary = Summary(*names, last, phases, training.data_summary.fingerprint, training.ended, best, **of)
        with communicator.agreed():
            if self._first:
                folder.write(SUMMARY, json.dumps(asdict(summary, dict_factory=known), default=str, indent=2) + "\n")
        self._roll_call.close()
        if self._first:
            self._watch.finished(summary)
        return summary

    def _go_on(self, told: bool) -> None:
        """Have those that are left go on, the first of them as rank 0. Collective among them."""
        training, folder, communicator = self._training, self._folder, self._communicator
        communicator.revoke()
        self._saver.give_up()
        self._roll_call.close(together=False)
        lost = go_on(training, self._fill, told)
        with communicator.agreed():
            if self._first and not self._leads:
                self._lock = FolderLock(folder.path, self._note, self._locks, self._own)
                self._at_the_end.callback(self._lock.release)
                folder.make()
                folder.write(SETTINGS, training.run.override({"output.folder": str(folder.path)}).toml())
                self._watch, self._leads = self._heir(), True
                self._at_the_end.push(partial(_close, self._watch))
                self._watch.started(training, folder, self._saver)
            if self._first:
                folder.keep_metrics(training.rounds_done)
        self._roll_call = self._call_roll(self._note)
        told = self._first and any(line["round"] == training.rounds_done for line in folder.metrics())
        training.untold = training.rounds_done > 0 and not communicator.broadcast_from_root(told)
        if training.best:
            training.best.forget()
            recall_scores(training, folder, self._note)
        self._saver = self._new_saver(self._saver.newest)
        for loss in lost:
            self._note(
                f"{loss} was lost in round {loss.round}: {communicator.size} rank{'s' * (communicator.size > 1)} went "
                f"on {training.position}, {loss.seconds:.1f} s later."
            )

    def _fill(self, store: ParameterStore) -> None:
        """Have in a store what there is of the network where nobody has a copy. Collective."""
        training = self._training
        saved = newest_valid(self._folder.path, self._communicator, self._note) or self._start
        with self._communicator.agreed():
            if saved:
                with open_checkpoint(saved) as checkpoint:
                    fill(checkpoint, store)
            else:
                store.initialise(training.run.train.seed)
                if training.run.train.init:
                    begin_with(Path(training.run.train.init), training.architecture, store)
        what = f"as {saved} has it" if saved else "as the run began"
        self._note(f"nobody has a copy of what a lost rank alone had: that goes on {what}.")

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
    """What the network that was kept as the best one reaches on the test split. Collective, the last thing of all."""
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
