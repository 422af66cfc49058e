"""Sets up a whole run in its folder, new or resumed, and carries it out."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from istmpi.checkpoint.folder import (
    NETWORK,
    newest_valid,
    remove_leftovers,
    require_valid,
    set_aside,
)
from istmpi.checkpoint.initial import begin_with
from istmpi.checkpoint.streamed import begin_with_function
from istmpi.comm import Communicator, HangWatch
from istmpi.comm.stopping import FILE as STOP_FILE
from istmpi.comm.stopping import StopSign
from istmpi.config import Run
from istmpi.data.callable.source import is_function
from istmpi.errors import DataError, DivergedError
from istmpi.foreign import forbid_exit
from istmpi.lock import FolderLock
from istmpi.record import SUMMARY, RunFolder, home
from istmpi.training.loop import Training
from istmpi.training.recall import recall
from istmpi.training.run_record import RunRecord
from istmpi.training.watch import Summary, Watch


@forbid_exit()
def run_training(
    run: Run,
    communicator: Communicator,
    watch: Watch | None = None,
    resume: str = "",
    deadline: float | None = None,
    signals: bool = False,
    stop: StopSign | None = None,
) -> Summary | None:
    """Train a run to its end; leave record, checkpoints and network in its folder. Collective.

    Only rank 0's ``watch`` and ``deadline`` are used. ``resume`` is a checkpoint, a run's folder,
    or ``auto`` for this run's own folder, which may be empty; without it the folder must be new.
    Newer checkpoints are renamed. The run stops early at the ``deadline`` (Unix time), if a file
    STOP is in its folder and, with ``signals``, on signals to the process; ``stop`` replaces these
    three. Returns None if nothing was left to do.

    Raises on every rank ConfigError or DataError before training; StoppedError or DivergedError
    after saving the result so far; OutputError if a result cannot be written.
    """

    def begin(stop: StopSign, start: Path | None) -> Training:
        return Training(run, communicator, stop, start=start)

    with recorded(run, communicator, begin, watch, resume, deadline, signals, stop) as (
        training,
        _,
        record,
    ):
        if record is None:
            return None
        for progress in training.rounds():
            record.add(progress)
        return record.end()


@contextmanager
def recorded(
    run: Run,
    communicator: Communicator,
    begin: Callable[[StopSign, Path | None], Training],
    watch: Watch | None,
    resume: str,
    deadline: float | None,
    signals: bool,
    stop: StopSign | None = None,
) -> Iterator[tuple[Training, RunFolder, RunRecord | None]]:
    """Set up a run as `run_training` does; yield the training that ``begin`` makes, folder, and
    record. Collective. ``begin`` also gets the checkpoint from which the run resumes.

    The record is None if nothing is left to do. A DivergedError is raised after the last finite
    network is saved.
    """
    first = communicator.rank == 0
    watch = watch or Watch()
    note = watch.noticed if first else lambda _: None
    with ExitStack() as locks, ExitStack() as at_the_end:
        tell = partial(print, "istmpi:", file=sys.stderr, flush=True) if communicator.rank else note
        hang_watch = HangWatch(
            communicator, run.comm.patience, home(run.output.folder, run.name), tell
        )
        at_the_end.push(hang_watch)
        with communicator.agreed():
            folder = RunFolder.of(run.output.folder, run.name, resume) if first else None
        folder = communicator.broadcast_from_root(folder)
        path = folder.path
        with communicator.agreed():
            lock = _lock(folder, resume, locks, note) if first and path.exists() else None
        stop = stop or StopSign(communicator, path / STOP_FILE, deadline)
        hang_watch.follow_run(path, stop.wished)
        if signals:
            stop.listen()
        start, recalled = _start(folder, resume, communicator, note), []
        training = begin(stop, start)
        if start:
            for change in training.resume(start):
                note(f"changed since {start}: {change}")
            recalled = recall(training, folder, start, note)
        began = () if start or training.rounds_done else begun_with(training)
        trained = start == folder.path / NETWORK and training.done
        summarised = False
        if trained and first:
            counts = training.tally.counts
            summarised = folder.has_summary(note, counts.rounds, counts.loss)
        if communicator.broadcast_from_root(summarised):
            note(f"nothing left to train: {start} is complete, {training.position}.")
            if first:
                remove_leftovers(folder.path)
                watch.already_finished(folder)
            yield training, folder, None
            return
        with communicator.agreed():
            if first:
                lock = lock or _lock(folder, "", locks, note)
                folder.make()
                if not trained:
                    folder.forget(SUMMARY)
                for path in set_aside(folder.path, start) if start else ():
                    note(f"set aside, because the run resumes from {start}: {path}")
        record = RunRecord(training, folder, watch, lock, hang_watch, trained)
        record.begin(start, began, recalled, at_the_end)
        try:
            yield training, folder, record
        except DivergedError as error:
            record.save_diverged(error)
            raise


def begun_with(training: Training) -> list[str]:
    """Load the initial weights of `train.init` that fit, once, before round 1; return the report.
    Collective."""
    train = training.run.train
    if train.init and not training.begun and not training.rounds_done:
        begun = training.architecture, training.store
        if training.init or is_function(train.init):
            training.begun = begin_with_function(
                train.init, training.init, *begun, training.communicator
            )
        else:
            with training.communicator.agreed():
                training.begun = begin_with(Path(train.init), *begun, train.init_names).lines
    return training.begun


def _lock(
    folder: RunFolder, resume: str, at_the_end: ExitStack, note: Callable[[str], None]
) -> FolderLock:
    lock = FolderLock(folder.path, note)
    at_the_end.callback(lock.release)
    folder.require_usable(bool(resume))
    return lock


def _start(
    folder: RunFolder, resume: str, communicator: Communicator, note: Callable[[str], None]
) -> Path | None:
    if not resume:
        return None
    path = folder.path if resume == "auto" else Path(resume)
    if resume != "auto" and not communicator.broadcast_from_root(path.is_dir()):
        require_valid(path, communicator)
        return path
    start = newest_valid(path, communicator, note)
    with communicator.agreed():
        if start is None and resume != "auto":
            raise DataError(f"--resume {resume} has no checkpoint.")
    return start
