"""Trains several methods in turn in one job, all with the same initial network, data and
evaluations.

Repeats use the run's seed and the seeds after it. Methods run A B C A B C, so that a disturbance of
the machine affects all. First every method trains a short round that is not measured, to make
connections.
"""

import gc
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from istmpi.comm import Communicator
from istmpi.comm.stopping import StopSources
from istmpi.config import Run
from istmpi.config.methods import METHODS
from istmpi.errors import (
    ConfigError,
    DataError,
    DivergedError,
    IstmpiError,
    StoppedError,
    UserError,
    did_you_mean,
)
from istmpi.files import preparing
from istmpi.foreign import Fields
from istmpi.lock import FolderLock
from istmpi.methods.limits import with_method
from istmpi.names import NARROW
from istmpi.record import COMPARISON, FAILURE, SETTINGS, SUMMARY, RunFolder, home
from istmpi.training.loop import Training
from istmpi.training.narrow import narrow_run
from istmpi.training.run import run_training
from istmpi.training.watch import Watch

EVALUATIONS = 20
"""The default number of evaluations: twice that of `istmpi train`, for a more exact time to a
target."""
REHEARSED: dict[str, Any] = {
    "method.local_steps": 1,
    "method.epochs": 1,
    "method.burn_in": 0,
    "optimizer.warm_up": 0,
    "train.resolution": [],
}
"""Settings of the rehearsal: the shortest round that needs as much memory as a whole run."""


@dataclass(frozen=True)
class Turn:
    """A run of a comparison, with its settings and its folder."""

    name: str
    """The method's name, or `NARROW`."""
    run: Run

    @property
    def seed(self) -> int:
        return self.run.train.seed

    @property
    def folder(self) -> Path:
        return Path(self.run.output.folder)

    @property
    def finished(self) -> bool:
        return (self.folder / SUMMARY).is_file()


class ComparisonWatch(Watch):
    """A watch on rank 0 over a comparison; the inherited methods are called for the current run."""

    def begun(self, turn: Turn, number: int, count: int) -> None:
        """Take note that run ``number`` (from 1) of ``count`` begins."""

    def skipped(self, turn: Turn) -> None:
        """Take note that an earlier job has finished this run."""

    def failed(self, turn: Turn, error: IstmpiError) -> None:
        """Take note that a run ended with an error; the others continue."""

    @property
    def of_trials(self) -> "ComparisonWatch":
        """The watch that follows trials: runs that only choose settings, and are not logged."""
        return self

    def trying(self, turn: Turn, values: str, rounds: int) -> None:
        """Take note that a trial of ``values``, in words, is trained to this round."""

    def chose(self, name: str, values: str) -> None:
        """Take note of the values that were chosen for a method, in words."""


class Comparison:
    """The runs of one comparison. Every method is collective. The constructor raises ConfigError
    for wrong settings.

    Each run has a subfolder of ``run.output.folder``. The default folder is the first of
    runs/compare-NAME, runs/compare-NAME-2, ... that is free or has this same comparison; its
    finished runs are not repeated. ``deadline`` and ``signals`` are as for `run_training`, for all
    runs together.
    """

    def __init__(
        self,
        run: Run,
        methods: Sequence[str],
        repeats: int,
        communicator: Communicator,
        deadline: float | None = None,
        signals: bool = False,
    ):
        assert repeats > 0, repeats
        self._communicator = communicator
        self._repeats = repeats
        self._runs = make_runs(run, methods, communicator)
        folder = Path()
        with communicator.agreed():
            if communicator.rank == 0:
                folder = self._choose_folder(run)
        self.folder = communicator.broadcast_from_root(folder)
        self.turns = list_turns(self._runs, repeats, self.folder)
        stops = StopSources(deadline, signals)
        self._stop = stops.open(communicator)
        stops.look_in(self.folder, self._stop)

    def _choose_folder(self, run: Run) -> Path:
        """Return the folder of a new comparison, or of this one that an earlier job began."""
        own_folder = run.output.folder
        path = home(own_folder, f"compare-{run.name}")
        try:
            for number in count(2):
                refusal = self._refuse(path)
                if not refusal:
                    break
                # Only a folder that nobody named may be replaced by the next one.
                if own_folder:
                    raise ConfigError(
                        f"--out {path}: {refusal}. Give the same settings, or another --out."
                    )
                path = home("", f"compare-{run.name}-{number}")
        except OSError as error:
            raise ConfigError(
                f"--out {path}: cannot be read ({error.strerror}). Give another folder."
            ) from None
        return path

    def _refuse(self, path: Path) -> str:
        """Return why a folder cannot have this comparison; empty if it can."""
        if not path.exists():
            return ""
        if not path.is_dir():
            return "it is a file"
        record = path / COMPARISON
        if not record.is_file():
            if any(path.iterdir()):
                return "the folder is not empty and holds no comparison"
            return ""
        saved = _read_record(record)
        ranks = saved.get("ranks", "an unknown number of")
        if ranks != self._communicator.size:
            return f"it has runs of {ranks} ranks, but this job has {self._communicator.size}"
        if saved.get("tuned") != self._describe().get("tuned"):
            return "its settings were chosen from other values (--tune), or not at all"
        return self._refuse_runs(path)

    def _refuse_runs(self, path: Path) -> str:
        """Return why the runs in a folder are others than this comparison's; empty if they fit."""
        return describe_differences(list_turns(self._runs, self._repeats, path))

    def _describe(self) -> dict[str, Any]:
        """Return the content of the record by which a later job knows this comparison."""
        return {"ranks": self._communicator.size}

    def rehearse(self) -> None:
        """Try each method that has unfinished runs: one local step (fedavg: one pass), then one
        step of method.finish.

        Raises a UserError that begins with the method's name.
        """
        left = self._communicator.broadcast_from_root(
            [turn for turn in self.turns if not turn.finished]
        )
        # The first unfinished run of each method: a later one in this order replaces the earlier.
        for turn in {turn.name: turn for turn in reversed(left)}.values():
            self._rehearse(turn)

    def _rehearse(self, turn: Turn) -> None:
        rounds = 1
        # The second round is that of the method with which a run finishes.
        if turn.run.method.finish:
            rounds = 2
        short = turn.run.override({**REHEARSED, "train.rounds": rounds})
        try:
            for _ in Training(short, self._communicator, self._stop).rounds():
                pass
        except DivergedError:
            pass  # its run reports it
        except UserError as error:
            error.args = (f"{turn.name}: {error}",)
            raise

    def run_training(self, watch: ComparisonWatch | None = None) -> dict[str, IstmpiError]:
        """Carry out all unfinished runs; return the errors of failed runs by the names of their
        folders.

        Raises StoppedError on every rank if the comparison was stopped. Finished work is saved for
        a new `Comparison`.
        """
        first = self._communicator.rank == 0
        if watch is None or not first:
            watch = ComparisonWatch()
        with ExitStack() as at_the_end:
            with self._communicator.agreed():
                if first:
                    with preparing(self.folder):
                        self.folder.mkdir(parents=True, exist_ok=True)
                        record = json.dumps(self._describe())
                        RunFolder(self.folder).write(COMPARISON, f"{record}\n")
                    at_the_end.callback(FolderLock(self.folder, watch.noticed).release)
            return self._carry_out(watch)

    def _carry_out(self, watch: ComparisonWatch) -> dict[str, IstmpiError]:
        failures = {}
        for number, turn in enumerate(self.turns, 1):
            self._leave_if_asked(turn)
            if self._communicator.broadcast_from_root(turn.finished):
                watch.skipped(turn)
                continue
            watch.begun(turn, number, len(self.turns))
            # The run before would otherwise count in this run's memory.
            gc.collect()
            self._communicator.ledger.begin_anew()
            try:
                run_training(turn.run, self._communicator, watch, resume="auto", stop=self._stop)
            except StoppedError:
                self._leave_if_asked(turn)
                raise
            except IstmpiError as error:
                # Ranks that do not know of the error would wait in the next run.
                if not error.everywhere:
                    raise
                failures[turn.folder.name] = error
                self._note_failure(turn, error)
                watch.failed(turn, error)
            else:
                if self._communicator.rank == 0:
                    (turn.folder / FAILURE).unlink(missing_ok=True)
        self._communicator.barrier()  # rank 0 has written everything
        return failures

    def _leave_if_asked(self, turn: Turn) -> None:
        # A rank may have been asked while others were not: all leave, or none.
        self._stop.asked()
        self._stop.settle(self._communicator.allgather(self._stop.reason))
        if self._stop.reason:
            error = StoppedError(
                f"stopped by {self._stop.reason} at {turn.folder.name}; finished work is saved in "
                f"{self.folder}. {self._stop.cure} command to continue."
            )
            error.everywhere = True
            raise error

    def _note_failure(self, turn: Turn, error: IstmpiError) -> None:
        tree = {"error": str(error), "exit_code": error.exit_code, "ranks": self._communicator.size}
        with self._communicator.agreed():
            if self._communicator.rank == 0:
                folder = RunFolder(turn.folder)
                folder.make()
                folder.write(SETTINGS, turn.run.toml())
                folder.write(FAILURE, json.dumps(tree, indent=2) + "\n")


def make_runs(run: Run, methods: Sequence[str], communicator: Communicator) -> dict[str, Run]:
    """Return a run of each method by its name, in their order. Collective.

    Raises ConfigError for an unknown method.
    """
    with communicator.agreed():
        choices = [*METHODS, NARROW]
        for name in methods:
            if name not in choices:
                hint = did_you_mean(name, choices)
                raise ConfigError(f"--methods: {name!r} is not known{hint}")
    runs = {}
    for name in methods:
        if name == NARROW:
            runs[name] = narrow_run(run, communicator)
        else:
            runs[name] = with_method(run, name)
    return runs


def list_turns(runs: Mapping[str, Run], repeats: int, folder: Path) -> list[Turn]:
    """Return the turns of a comparison in their order, each with its folder in ``folder``.

    ``runs``: as of `make_runs`; turn r has the run's seed plus r.
    """
    turns = []
    for repeat in range(repeats):
        for name, run in runs.items():
            seed = run.train.seed + repeat
            settings = {
                "train.seed": seed,
                "evaluate.every": run.evaluate.every or max(run.train.rounds // EVALUATIONS, 1),
                "output.folder": str(folder / f"{name}-{seed}"),
            }
            turns.append(Turn(name, run.override(settings)))
    return turns


def describe_differences(turns: Iterable[Turn], but_for: Collection[str] = ()) -> str:
    """Return which turn's folder has another run, and the differences; empty if none has.

    ``but_for``: settings that may differ.
    """
    for turn in turns:
        if not (turn.folder / SETTINGS).is_file():
            continue
        differences = Run.load(str(turn.folder / SETTINGS)).differences(turn.run)
        # A folder may have another name now.
        for name in ("output.folder", *but_for):
            differences.pop(name, None)
        shown = "; ".join(
            f"{name} = {saved} there, {here} here" for name, (saved, here) in differences.items()
        )
        if shown:
            return f"its {turn.folder.name} is another run ({shown})"
    return ""


def _read_record(path: Path) -> Mapping[str, Any]:
    """Return a comparison's record; an empty one if it cannot be read."""
    try:
        return Fields.read(path, path, "").tree
    except DataError:
        return {}
