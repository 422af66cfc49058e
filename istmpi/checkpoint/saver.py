"""Saves checkpoints during training, by default in a thread. A file gets its name only when it is
complete."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from istmpi.checkpoint.folder import FOLDER, file_name, remove_leftovers, retain
from istmpi.checkpoint.format import Header, Piece, add_checksums
from istmpi.checkpoint.per_host import commit_part
from istmpi.checkpoint.sight import Place, look_for
from istmpi.checkpoint.writers import PARTS, choose, write_file
from istmpi.comm import Communicator, threads_may_call_everywhere
from istmpi.comm.ledger import SAVING
from istmpi.config import Checkpoint as Settings
from istmpi.errors import IstmpiError, OutputError
from istmpi.files import name_at_last, temporary, writing

_CALL = "checkpoint"
_Job = tuple[Header, list[Piece], IstmpiError | None]
"""A checkpoint that the thread saves, and why this rank must not save it, if so."""


def commit(
    path: Path,
    header: Header,
    pieces: Sequence[Piece],
    writer: str,
    communicator: Communicator,
    refusal: IstmpiError | None = None,
) -> None:
    """Write a checkpoint to a temporary file; rename it to ``path`` when all ranks' parts are on
    disk. Collective.

    Raises OutputError on every rank if any rank cannot write, and the ``refusal`` of a rank that
    must not save; an older file at ``path`` is then unchanged.
    """
    # The name and the header are rank 0's: names are random, and times differ.
    beside = temporary(path)
    try:
        with communicator.agreed(), writing(path):
            write_file(writer, beside, header, add_checksums(pieces), communicator, refusal)
        with communicator.agreed():
            if communicator.rank == 0:
                # All ranks' parts are on disk now.
                with writing(path):
                    name_at_last(beside, path)
    finally:
        if communicator.rank == 0:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)


def prepare_folder(run_folder: Path) -> None:
    """Make the folder of a run's checkpoints, and remove what unfinished writes have left.

    Raises OutputError if that fails.
    """
    folder = run_folder / FOLDER
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    remove_leftovers(run_folder)


class Saver:
    """Writes a run's checkpoints one after another, by default in a thread. Collective, except
    `close` and `newest`.

    The thread is for checkpoints of every few rounds (``settings.every``). After
    ``settings.max_failures`` failures in a row `save` or `wait` raises OutputError. ``start``: the
    checkpoint from which the run resumes. ``communicators_are_made``: True if rounds create MPI
    communicators; parallel HDF5 then uses no thread, for two threads that create communicators may
    deadlock. ``place``: who sees and keeps the folder, which `prepare_folder` has made; without it
    ranks look for it.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        communicator: Communicator,
        warn: Callable[[str], None] = lambda _: None,
        start: Path | None = None,
        communicators_are_made: bool = False,
        place: Place | None = None,
    ):
        self.folder = folder / FOLDER
        self._place = place or look_for(folder, communicator)
        self._settings = settings
        self._warn = warn
        self._communicator = communicator
        self._staged: dict[str, np.ndarray] = {}
        """Copies of pieces by path, as bytes, while the thread writes them."""
        self._valid: list[Path] = []
        """The last complete checkpoints of this job, and ``start``; the oldest first."""
        if start:
            self._valid.append(start)
        self._failures = 0
        self._outcome: BaseException | None = None
        """The error of the last checkpoint, which `wait` takes; None if there was none."""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._begin(communicator, communicators_are_made)

    def _begin(self, communicator: Communicator, communicators_are_made: bool) -> None:
        """Choose the writers, and start the thread if checkpoints are due."""
        self._choose_writers()
        alone = self.writer == "mpio" and communicators_are_made
        threads_may_call = threads_may_call_everywhere(communicator)
        in_turn = self._settings.wait or alone or not self._settings.every
        self._uses_threads = threads_may_call and not in_turn
        if self._uses_threads:
            # Its own, so that the thread's messages and those of training do not mix.
            self._communicator = communicator.duplicate(SAVING)
        # A rank whose thread cannot start saves with the threads of the others.
        self.background = self._uses_threads and self._start_thread()

    def _choose_writers(self) -> None:
        """Choose the writers of checkpoints and of whole files; warn on rank 0 if some rank does
        not see the folder."""
        unseen = self._place.unseen
        choice = self._settings.writer
        self._whole_writer = choose(choice, self._place.parallel, unseen)
        self.writer = self._whole_writer
        if choice == PARTS or (unseen and choice == "auto"):
            self.writer = PARTS
        if unseen and self._communicator.rank == 0:
            checkpoints = "each rank writes its part of a checkpoint to its own host"
            if self.writer != PARTS:
                checkpoints = "rank 0 writes checkpoints for all ranks"
            self._warn(f"{unseen}, so {checkpoints}; rank 0 has the record and the network.")

    def save(
        self, header: Header, pieces: Sequence[Piece], refusal: IstmpiError | None = None
    ) -> None:
        """Save a checkpoint, or let the thread save it; ``pieces`` may change once the call
        returns.

        ``refusal``: why this rank must not save. All ranks raise it, in `wait` if the thread saves.
        """
        self.wait()
        if self.background:
            staged = self._stage(pieces)
            self._idle.clear()
            self._jobs.put((header, staged, refusal))
        else:
            with self._saving():
                self._save(header, pieces, refusal)
            # This raises what `_save` has noted; ranks with threads raise it at the next one.
            if not self._uses_threads:
                self.wait()

    def wait(self) -> None:
        with self._communicator.waiting_for_itself(_CALL):
            self._idle.wait()
        outcome = self._outcome
        self._outcome = None
        if outcome is None:
            return
        # A disk may be full for a while: the run survives some failures of this kind.
        survivable = isinstance(outcome, OutputError)
        if not survivable or self._failures >= self._settings.max_failures:
            raise outcome

    def save_now(
        self,
        header: Header,
        pieces: Sequence[Piece],
        refusal: IstmpiError | None = None,
        path: Path | None = None,
    ) -> Path:
        """Save a checkpoint before the call returns, to ``path`` if given. Raises OutputError at
        the first failure, and the ``refusal`` of a rank that must not save."""
        self.wait()
        with self._saving():
            if path is None:
                return self._commit(header, pieces, refusal)
            commit(path, header, pieces, self._whole_writer, self._communicator, refusal)
            return path

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """Count what the training thread sends in a block as that of a checkpoint."""
        communicator = self._communicator
        with communicator.waiting_for_itself(_CALL), communicator.ledger.counting(SAVING):
            yield

    @property
    def newest(self) -> Path | None:
        if not self._valid:
            return None
        return self._valid[-1]

    def close(self) -> None:
        self._jobs.put(None)

    def _start_thread(self) -> bool:
        """Start the thread of all checkpoints before training; if it cannot start, warn and return
        False."""
        try:
            threading.Thread(target=self._serve, name="checkpoints", daemon=True).start()
        except RuntimeError as error:
            self._warn(
                f"rank {self._communicator.rank}: cannot start the checkpoint thread ({error}); "
                "training waits for each checkpoint."
            )
            return False
        return True

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:  # from `close`
                return
            self._save(*job)
            self._idle.set()

    def _save(self, header: Header, pieces: Sequence[Piece], refusal: IstmpiError | None) -> None:
        try:
            path = self._commit(header, pieces, refusal)
            self._failures = 0
            self._valid = [*self._valid, path][-self._settings.keep :]
            if self._place.keeps:
                retain(self.folder, self._settings.keep, self._valid)
        except OutputError as error:
            self._failures += 1
            last = self._failures >= self._settings.max_failures
            then = "The run continues; older checkpoints are untouched."
            if last:
                then = f"Failures in a row: {self._failures}."
            error.args = (f"checkpoint of round {header.round}: {error} {then}",)
            self._outcome = error
            if self._communicator.rank == 0 and not last:
                self._warn(str(error))
        except BaseException as error:  # `wait` raises it
            self._outcome = error

    def _commit(
        self, header: Header, pieces: Sequence[Piece], refusal: IstmpiError | None = None
    ) -> Path:
        path = self.folder / file_name(header)
        if self.writer == PARTS:
            path = path.with_suffix("")
            commit_part(path, header, pieces, self._communicator, refusal)
        else:
            commit(path, header, pieces, self.writer, self._communicator, refusal)
        return path

    def _stage(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return copies of the pieces, in memory that all checkpoints share."""
        staged = []
        for piece in pieces:
            copy = self._staged.get(piece.path)
            if copy is None or copy.nbytes != piece.values.nbytes:
                copy = np.empty(piece.values.nbytes, dtype=np.uint8)
                self._staged[piece.path] = copy
            np.copyto(copy, piece.bytes)
            staged.append(replace(piece, values=copy))
        return staged
