"""A whole run in its folder: go on or start anew, train to the end, keep record and checkpoints, say how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from istmpi.checkpoint.folder import BEST, NETWORK, listed, newest_valid, require_valid, set_aside
from istmpi.checkpoint.initial import begin_with
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import Saver
from istmpi.checkpoint.state import fill
from istmpi.comm import Communicator
from istmpi.comm.stopping import FILE as STOP_FILE
from istmpi.comm.stopping import StopSign
from istmpi.config import Run
from istmpi.errors import DataError, DivergedError, IstmpiError, OutputError, StoppedError
from istmpi.evaluation.evaluator import Score
from istmpi.lock import FolderLock
from istmpi.record import METRICS, SETTINGS, SUMMARY, RunFolder, known
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.trace import profiled, require_round


@dataclass(frozen=True)
class BestNetwork:
    """The network that scored best on the validation split."""

    path: Path
    round: int
    validation: float
    score: Score
    """On the test split."""


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    folder: Path
    ranks: int
    score_name: str
    last: Progress
    """After the last round, with its score."""
    seconds: dict[str, float]
    """Where the time went: by phase, the mean over ranks."""
    data: str = ""
    """A fingerprint of the training data; empty where each rank has its own."""
    ended: str = ""
    """Why no further round was trained."""
    best: BestNetwork | None = None
    """Of a run that keeps it."""

    @property
    def examples_per_second(self) -> float:
        """Consumed by all ranks, evaluations left out."""
        return self.last.examples / self.last.seconds


class Watch:
    """Looks on from rank 0 while a run is carried out; override what is of interest."""

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        """Everything is checked and set up."""

    def progressed(self, progress: Progress) -> None:
        """A round is done."""

    def noticed(self, message: str) -> None:
        """Something that the user should know and that does not end the run."""

    def finished(self, summary: Summary) -> None:
        """The run is done."""

    def already_finished(self, folder: RunFolder) -> None:
        """An earlier job has done the run: nothing was left to do."""

    def closed(self, error: IstmpiError | None) -> None:
        """A run that was started is over: done, or ended by an error, as a stop is one."""


def run_training(
    run: Run,
    communicator: Communicator,
    watch: Watch | None = None,
    resume: str = "",
    deadline: float | None = None,
    signals: bool = False,
    stop: StopSign | None = None,
    profile: int | None = None,
) -> Summary | None:
    """Train a run to its end; leave record, checkpoints and network in its folder. Collective.

    ``watch`` and ``deadline`` count on rank 0 alone. ``resume``: a checkpoint or the folder of a run to go on from,
    ``auto`` for this run's own folder if there is something in it; without it the folder must be new. What checkpoints
    there lie beyond are set aside. Nobody else may be at work in the folder meanwhile. The run stops early at the
    ``deadline`` (Unix time), on a file STOP in its folder and, with ``signals``, on signals to the process; or on
    ``stop`` in place of all these. Returns None when there was nothing left to do. A run that was killed behind its
    last round only has its summary made. Of the round ``profile``, from 1, a trace is left (`istmpi.training.trace`).

    Raises, on every rank, ConfigError or DataError before anything is trained; StoppedError and DivergedError with all
    that was reached saved; OutputError when a result cannot be written.
    """
    first = communicator.rank == 0
    watch = watch or Watch()
    note = watch.noticed if first else lambda _: None
    with communicator.agreed():
        require_round(profile, run.train.rounds)
        folder = RunFolder.of(run.output.folder, run.name, resume) if first else None
    folder = communicator.broadcast_from_root(folder)
    with ExitStack() as at_the_end:
        with communicator.agreed():
            lock = _lock(folder, resume, at_the_end, note) if first and folder.path.exists() else None
        start = _start(folder, resume, communicator, note)
        stop = stop or StopSign(communicator, folder.path / STOP_FILE, deadline)
        if signals:
            stop.listen()
        training = Training(run, communicator, stop)
        if start:
            for change in training.resume(start):
                note(f"changed since {start}: {change}")
            _recall_scores(training, folder, note)
        began = begun_with(training) if run.train.init and not start else ()
        trained = start == folder.path / NETWORK and training.done
        if trained and communicator.broadcast_from_root((folder.path / SUMMARY).is_file()):
            note(f"nothing left to train: {start} was saved {training.position}, the end of the run.")
            if first:
                watch.already_finished(folder)
            return None
        with communicator.agreed():
            if first:
                lock = lock or _lock(folder, "", at_the_end, note)
                folder.make()
                if not trained:
                    folder.forget(SUMMARY)
                for path in set_aside(folder.path, start) if start else ():
                    note(f"set aside, for the run resumes from {start}: {path}")
        inside = first and start and next((path for path in listed(folder.path) if path.samefile(start)), None)
        inside = communicator.broadcast_from_root(inside)
        saver = Saver(folder.path, run.checkpoint, communicator, note, inside, training.makes_communicators)
        at_the_end.callback(saver.close)
        if first:
            folder.write(SETTINGS, run.override({"output.folder": str(folder.path)}).toml())
            folder.keep_metrics(training.rounds_done)
            at_the_end.push(partial(_close, watch))
            watch.started(training, folder, saver)
            for line in began:
                note(line)
            if start:
                note(f"resuming from {start}, {training.position}.")
        if start and not inside and not training.done:
            saver.save(*training.state())  # so that --resume auto goes on from there, too
            saver.wait()
        rounds = profiled(training, profile, folder, note)
        progress = _train(training, rounds, folder, saver, lock, watch, save_network=not trained)
        per_rank = communicator.allgather(dict(training.clock.seconds))
        phases = {phase: sum(seconds[phase] for seconds in per_rank) / len(per_rank) for phase in per_rank[0]}
        last = replace(progress or training.progress(training.evaluate()), last_round=None)
        best = _best(training, folder, last) if run.checkpoint.best else None
        names = folder.path, communicator.size, training.score_name
        summary = Summary(*names, last, phases, training.data_fingerprint, training.ended, best)
        if first:
            folder.write(SUMMARY, json.dumps(asdict(summary, dict_factory=known), default=str, indent=2) + "\n")
            watch.finished(summary)
        return summary


def begun_with(training: Training) -> list[str]:
    """Take what fits of the weights that the run says to begin with; what did, a line each. Collective."""
    with training.communicator.agreed():
        return begin_with(Path(training.run.train.init), training.architecture, training.store).lines


def _recall_scores(training: Training, folder: RunFolder, note: Callable[[str], None]) -> None:
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
    """The rounds that were done when a checkpoint was saved; None where there is none that can be read."""
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
    """Tell the end of a run, but of a job that is torn down: nobody shall wait for it."""
    if error is None or isinstance(error, IstmpiError):
        watch.closed(error)


def _lock(folder: RunFolder, resume: str, at_the_end: ExitStack, note: Callable[[str], None]) -> FolderLock:
    """Hold the run's folder until the end; ConfigError when another run is in it, or was until now."""
    lock = FolderLock(folder.path, note)
    at_the_end.callback(lock.release)
    folder.require_usable(bool(resume))
    return lock


def _train(
    training: Training,
    rounds: Iterator[Progress],
    folder: RunFolder,
    saver: Saver,
    lock: FolderLock | None,
    watch: Watch,
    save_network: bool,
) -> Progress | None:
    """Train to the end, with record and checkpoints; returns what is known after the last round, if there was one."""
    run, communicator, network, progress = training.run, training.communicator, folder.path / NETWORK, None
    first = communicator.rank == 0

    def require_lock() -> None:
        with communicator.agreed():
            if lock:
                lock.require()

    try:
        for progress in rounds:
            if first:
                try:
                    folder.append(progress.record())
                except OutputError as error:
                    if len(folder.pending) == 1:
                        watch.noticed(f"{error} The run continues; its metrics are kept until they can be.")
                watch.progressed(progress)
            if run.checkpoint.best and progress.validation and training.best.round == progress.round:
                with training.clock("save"):
                    require_lock()
                    saver.save_now(*training.state(calibrated=True), folder.path / BEST)
            if training.checkpoint_due:
                with training.clock("save"):
                    require_lock()
                    saver.save(*training.state())
        with training.clock("save"):
            require_lock()
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
        saver.save_now(*training.state(calibrated=True), network)
        error.args = (f"{error} They are in {network}.",)
        raise
    return progress


def _start(folder: RunFolder, resume: str, communicator: Communicator, note: Callable[[str], None]) -> Path | None:
    """The checkpoint to go on from, every byte of it checked."""
    if not resume:
        return None
    path = folder.path if resume == "auto" else Path(resume)
    if resume != "auto" and not communicator.broadcast_from_root(path.is_dir()):
        require_valid(path, communicator)
        return path
    start = newest_valid(path, communicator, note)
    with communicator.agreed():
        if start is None and resume != "auto":
            raise DataError(f"--resume {resume}: there is no checkpoint in this folder.")
    return start
