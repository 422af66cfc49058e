"""Keeps the folder of a run, on each host that has one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from istmpi.checkpoint.folder import list_checkpoints, set_aside
from istmpi.checkpoint.parts import Copy, is_round_of_parts
from istmpi.checkpoint.saver import prepare_folder
from istmpi.checkpoint.sight import Place, Probe, find_probe, leave_probe
from istmpi.checkpoint.writers import choose
from istmpi.comm import Communicator
from istmpi.comm.root import ask_root
from istmpi.config import Run
from istmpi.errors import IstmpiError
from istmpi.lock import FolderLock
from istmpi.record import SUMMARY, RunFolder
from istmpi.training.opening import Opening
from istmpi.training.progress import Counts
from istmpi.training.recall import Line
from istmpi.training.run_record import write_settings

_SLOT = 2**10
"""Bytes of the message with a folder and the outline of data: enough for paths of usual length."""


class Choice(NamedTuple):
    """The folder of a run, and whether it resumes from a checkpoint that is named."""

    folder: RunFolder
    names_checkpoint: bool
    """False if the newest valid checkpoint of a folder is meant, or none."""


class FolderKeeper:
    """Chooses, locks, makes and tidies a run's folder, on rank 0 and on hosts that do not see its
    folder. The constructor, which locks a folder that is there, and methods are collective."""

    def __init__(
        self,
        run: Run,
        resume: str,
        communicator: Communicator,
        locks: ExitStack,
        note: Callable[[str], None],
        opening: Opening | None = None,
    ):
        """``opening``: data that ranks open and describe at the same time."""
        self._communicator = communicator
        self._locks = locks
        self.note = note
        self.inside: Path | None = None
        """The path in the folder of the checkpoint from which the run resumes; None if it is
        elsewhere."""
        self.place = Place(keeps=communicator.rank == 0)
        self._lock: FolderLock | None = None
        self._resumes = bool(resume)
        self.folder, self.names_checkpoint = self._agree(
            partial(self._choose, run, resume), opening
        )

    def _agree(self, choose: Callable[[], Choice], opening: Opening | None) -> Choice:
        communicator = self._communicator
        # Rank 0 chooses, because a folder may look free to some ranks only.
        if opening is None:
            return ask_root(communicator, choose)
        choice: Choice | None = None
        with communicator.agreed(_SLOT) as agreement:
            if communicator.rank == 0:
                choice = choose()
            agreement.value = choice, opening.open()
        choices, opening.by_rank = zip(*agreement.by_rank, strict=True)
        choice, *_ = choices
        assert choice is not None, "rank 0 has chosen"
        return choice

    def _choose(self, run: Run, resume: str) -> Choice:
        self.folder = RunFolder.choose(run.output.folder, run.name, resume)
        if self.folder.path.exists():
            self._take_lock(self._resumes)
        path = Path(resume)
        of_a_folder = path.is_dir() and not is_round_of_parts(path)
        return Choice(self.folder, resume not in ("", "auto") and not of_a_folder)

    def holds_summary(self, counts: Counts) -> bool:
        """Return True if the folder has the summary of a run that ended with these counts."""
        summarised = False
        if self._communicator.rank == 0:
            summarised = self.folder.has_summary(self.note, counts.rounds, counts.loss)
        return self._communicator.broadcast_from_root(summarised)

    def make(
        self, start: Copy | None, trained: bool, run: Run, read: Callable[[], list[Line]]
    ) -> tuple[FolderLock | None, list[Line]]:
        """Make the folder, and rename checkpoints that are newer than ``start``; return this rank's
        lock, and what rank 0 has ``read`` before that. ``trained``: only the summary is missing.
        ``run``: the settings of hosts that do not see rank 0's folder."""
        work = partial(self._make_on_root, start, trained, read)
        probe, self.inside, lines = ask_root(self._communicator, work)
        self.place = find_probe(probe, self.folder.path, self._communicator)
        if probe and self.place.unseen:
            choose(run.checkpoint.writer, self.place.parallel, self.place.unseen)
            try:
                self._lock_elsewhere(probe.content, start, run)
            except IstmpiError:
                # The next try finds the folder as this one has found it.
                if self.place.keeps and not self._resumes:
                    self.folder.unmake()
                raise
        # Its rows are in the memory now.
        if start:
            start.discard()
        return self._lock, lines

    def _make_on_root(
        self, start: Copy | None, trained: bool, read: Callable[[], list[Line]]
    ) -> tuple[Probe | None, Path | None, list[Line]]:
        """Make rank 0's folder; return the file that other ranks look for, `inside`, and what was
        ``read``."""
        lines = read()
        folder = self.folder
        if self._lock is None:
            self._take_lock(resumes=False)
        folder.make()
        # A summary says that a run is finished.
        if not trained:
            folder.forget(SUMMARY)
        prepare_folder(folder.path)
        self._set_aside(start)
        return leave_probe(folder.path, self._communicator), self._find_inside(start), lines

    def _set_aside(self, start: Copy | None) -> None:
        if start:
            for path in set_aside(self.folder.path, start):
                self.note(f"set aside, because the run resumes from {start}: {path}")

    def _find_inside(self, start: Copy | None) -> Path | None:
        # Another host may have it.
        if start and start.path.exists():
            for path in list_checkpoints(self.folder.path):
                if path.samefile(start.path):
                    return path
        return None

    def _lock_elsewhere(self, team: str, start: Copy | None, run: Run) -> None:
        """Lock the folders of the hosts that do not see rank 0's folder, and write the settings
        there: a rank of each may be rank 0 in the next job."""
        with self._communicator.agreed():
            if not self.place.shared:
                self._take_lock(self._resumes, team)
                if self.place.keeps:
                    prepare_folder(self.folder.path)
                    self._set_aside(start)
                    write_settings(self.folder, run)

    def _take_lock(self, resumes: bool, team: str = "") -> None:
        self._lock = FolderLock(self.folder.path, self.note, team)
        self._locks.callback(self._lock.release)
        if not self._lock.holds:
            return
        self.place = replace(self.place, keeps=True)
        # A host's disk has parts of the run that resumes, and perhaps no record.
        if not (team and resumes):
            self.folder.require_usable(resumes)
