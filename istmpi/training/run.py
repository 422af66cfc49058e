"""Sets up a whole run in its folder, new or resumed, and carries it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from istmpi.checkpoint.folder import (
    FOLDER,
    NETWORK,
    remove_leftovers,
)
from istmpi.checkpoint.initial import begin_with
from istmpi.checkpoint.parts import Copy
from istmpi.checkpoint.search import find_newest_valid, reach
from istmpi.checkpoint.streamed import begin_with_function
from istmpi.comm import Communicator, HangWatch
from istmpi.comm.groups import Membership, Start
from istmpi.comm.hang_watch import print_line
from istmpi.comm.stopping import StopSign, StopSources
from istmpi.config import Run
from istmpi.data.callable.source import is_function
from istmpi.errors import DataError, DivergedError
from istmpi.foreign import forbid_exit
from istmpi.names import is_own
from istmpi.network import source
from istmpi.record import RunFolder
from istmpi.tasks import OwnTask
from istmpi.training.hangs import watch_for_hangs
from istmpi.training.loop import Training
from istmpi.training.member import serve_leader
from istmpi.training.opening import Opening
from istmpi.training.recall import Recollection
from istmpi.training.run_folder import FolderKeeper
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
    hang_watch: HangWatch | None = None,
) -> Summary | None:
    """Train a run to its end; leave record, checkpoints and network in its folder. Collective.

    Only rank 0's ``watch`` and ``deadline`` are used. ``resume`` is a checkpoint, a run's folder,
    or ``auto`` for this run's own folder, which may be empty; without it the folder must be new.
    Newer checkpoints are renamed. The run stops early at the ``deadline`` (Unix time), if a file
    STOP is in its folder and, with ``signals``, on signals to the process; ``stop`` replaces these
    three. The run closes ``hang_watch``, which all ranks opened. Returns None if nothing was left.

    Raises on every rank ConfigError or DataError before training; StoppedError or DivergedError
    after saving the result so far; OutputError if a result cannot be written. Of a replica group
    only the leader gets the summary.
    """
    stops = StopSources(deadline, signals, shared=stop)
    if run.train.group_size == 1:
        return _train(run, communicator, stops, watch, resume, hang_watch)
    membership = Membership(communicator, run.train.group_size)
    if membership.leads:
        communicator = membership.communicator
        return _train(run, communicator, stops, watch, resume, hang_watch, membership)
    serve_leader(run, membership, signals, hang_watch)
    return None


def _train(
    run: Run,
    communicator: Communicator,
    stops: StopSources,
    watch: Watch | None,
    resume: str,
    hang_watch: HangWatch | None,
    membership: Membership | None = None,
) -> Summary | None:
    """Do the work of `run_training` on a rank that is no member of another's group. Collective."""
    opening: Opening | None = None
    # Members of groups hear what their leaders agree on only while a run is set up.
    if membership is None:
        opening = Opening(run, communicator.rank)
    begin = partial(_begin_training, run, communicator, membership, opening)
    opened = open_run(
        run, communicator, begin, stops, watch, resume, hang_watch, membership, opening
    )
    with opened as (training, _, record):
        if record is None:
            return None
        for progress in training.rounds():
            record.add(progress)
        return record.end()


def _begin_training(
    run: Run,
    communicator: Communicator,
    membership: Membership | None,
    opening: Opening | None,
    stop: StopSign,
    start: Copy | None,
) -> Training:
    if membership:
        membership.tell(Start(start))
    return Training(run, communicator, stop, start, membership=membership, opening=opening)


@contextmanager
def open_run(
    run: Run,
    communicator: Communicator,
    begin: Callable[[StopSign, Copy | None], Training],
    stops: StopSources,
    watch: Watch | None,
    resume: str,
    hang_watch: HangWatch | None = None,
    membership: Membership | None = None,
    opening: Opening | None = None,
) -> Iterator[tuple[Training, RunFolder, RunRecord | None]]:
    """Set up a run as `run_training` does; yield the training that ``begin`` makes, folder, and
    record. Collective.

    ``begin`` also gets the checkpoint from which the run will resume. The record is None if nothing
    is left to do. A DivergedError is raised after the last finite network is saved. ``membership``:
    this leader's place in a job of replica groups. ``opening``: the data of ``begin``.
    """
    watch = watch or Watch()
    note, tell = _choose_voices(watch, communicator.rank)
    # Locks are released after everything else is closed.
    with ExitStack() as locks, ExitStack() as at_the_end:
        # From here on a rank that does not come is named, as files may hang, too.
        everyone = communicator
        if membership:
            everyone = membership.world
        hang_watch = hang_watch or watch_for_hangs(run, everyone, tell)
        if membership:
            hang_watch.before_close = membership.dismiss
        at_the_end.push(hang_watch)
        stop = stops.open(communicator)
        keeper = FolderKeeper(run, resume, communicator, locks, note, opening)
        folder = keeper.folder
        stops.look_in(folder.path, stop)
        hang_watch.follow_run(folder.path, stop.wished, tell)
        start = _find_start(keeper, resume, communicator, at_the_end)
        training = begin(stop, start)
        at_the_end.callback(training.close)
        yield from _open_record(training, start, keeper, watch, hang_watch, at_the_end)


def _open_record(
    training: Training,
    start: Copy | None,
    keeper: FolderKeeper,
    watch: Watch,
    hang_watch: HangWatch,
    at_the_end: ExitStack,
) -> Iterator[tuple[Training, RunFolder, RunRecord | None]]:
    """Resume from ``start``, or load initial weights; yield what `open_run` does. Collective."""
    folder = keeper.folder
    note = keeper.note
    recollection = Recollection(training, folder, start, note)
    notes: Sequence[str] = ()
    if start:
        _resume(training, start, recollection, note)
    elif not training.rounds_done:
        notes = [*load_initial_weights(training), *_describe_unused(training)]
    trained = start is not None and start.path == folder.path / NETWORK and training.done
    if trained and keeper.holds_summary(training.tally.counts):
        note(f"nothing left to train: {start} is complete, {training.position}.")
        # A killed job may have left unfinished files.
        if training.communicator.rank == 0:
            remove_leftovers(folder.path)
            watch.already_finished(folder)
        yield training, folder, None
        return
    lock, lines = keeper.make(start, trained, training.run, recollection.read)
    recollection.take_up(lines)
    if not keeper.place.shared:
        training.stop.look_here()
    record = RunRecord(
        training, folder, watch, lock, hang_watch, trained=trained, place=keeper.place
    )
    record.begin(start, keeper.inside, notes, recollection.lines, at_the_end)
    try:
        yield training, folder, record
    except DivergedError as error:
        record.save_diverged(error)
        raise


Voice = Callable[[str], None]


def _choose_voices(watch: Watch, rank: int) -> tuple[Voice, Voice]:
    """Return the functions that take what rank 0 alone says, and what any rank says."""
    if rank == 0:
        return watch.noticed, watch.noticed
    # Other ranks have no watch: they print.
    return _ignore, print_line


def _ignore(message: str) -> None:
    """Take a message of a rank that has no watch."""


def _resume(
    training: Training, start: Copy, recollection: Recollection, note: Callable[[str], None]
) -> None:
    """Resume from the checkpoint ``start``, with the scores that decide if a run is done.
    Collective."""
    for change in training.resume(start):
        note(f"changed since {start}: {change}")
    recollection.exchange()


def load_initial_weights(training: Training) -> Sequence[str]:
    """Load the initial weights of `train.init` that fit, once, before round 1; return the report.
    Collective."""
    train = training.run.train
    if not train.init or training.begun or training.rounds_done:
        return training.begun
    network = training.architecture
    store = training.store
    communicator = training.communicator
    if training.init or is_function(train.init):
        training.begun = begin_with_function(
            train.init, training.init, network, store, communicator
        )
    else:
        with communicator.agreed():
            initial = Path(train.init)
            begun = begin_with(initial, network, store, train)
            training.begun = begun.lines
    return training.begun


def _describe_unused(training: Training) -> list[str]:
    """Return a note about a loss or score of the network's class that the run does not use."""
    name = training.run.model.name
    scoring = training.dataset.scoring
    if training.dataset.network is not None or not is_own(name) or issubclass(scoring, OwnTask):
        return []
    network_class, _ = source.load_class(name)
    functions = ("loss", "score")
    unused = [word for word in functions if callable(getattr(network_class, word, None))]
    if not unused:
        return []
    return [
        f"{name} has {' and '.join(f'a {word}' for word in unused)} that the run does not use. "
        "Only data of a function (--data FILE.py:function) use them."
    ]


def _find_start(
    keeper: FolderKeeper, resume: str, communicator: Communicator, at_the_end: ExitStack
) -> Copy | None:
    """Return the checkpoint from which a run resumes; None for a new run. Collective."""
    if not resume:
        return None
    start = _choose_start(keeper, resume, communicator)
    if start:
        at_the_end.callback(start.discard)
    return start


def _choose_start(keeper: FolderKeeper, resume: str, communicator: Communicator) -> Copy | None:
    path = Path(resume)
    room = keeper.folder.path / FOLDER
    # A checkpoint that is named is taken or refused; of a folder, the newest that is valid.
    if keeper.names_checkpoint:
        return reach(path, communicator, keeper.note, room)
    if resume == "auto":
        path = keeper.folder.path
    start = find_newest_valid(path, communicator, keeper.note, room)
    # All ranks have searched the same list.
    if start is None and resume != "auto":
        error = DataError(f"--resume {resume} has no checkpoint.")
        error.everywhere = True
        raise error
    return start
