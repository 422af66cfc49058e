"""The rounds of a program's job: begun or resumed in a folder, recorded, saved and ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakMethod

from istmpi.checkpoint.parts import Copy
from istmpi.comm import Communicator
from istmpi.comm.leaving import at_the_end
from istmpi.comm.stopping import StopSign, StopSources
from istmpi.config import Run
from istmpi.engine.group_calls import Begun, Restored
from istmpi.errors import ConfigError
from istmpi.program.arguments import (
    in_python,
    require_resumable,
    require_same,
)
from istmpi.program.autocast import Autocast
from istmpi.program.bests import Bests
from istmpi.program.epochs import Passes, open_passes, require_epochs
from istmpi.program.guard import Guard
from istmpi.program.in_group import Place
from istmpi.program.kept import Kept, Stateful
from istmpi.program.member_loop import MemberLoop
from istmpi.program.printing import Printing
from istmpi.program.round import Round
from istmpi.program.scores import Scores
from istmpi.program.scoring import Scoring
from istmpi.program.streams import Streams
from istmpi.record import RunFolder
from istmpi.training.best import Best
from istmpi.training.loop import Training
from istmpi.training.run import load_initial_weights, open_run
from istmpi.training.run_record import RunRecord
from istmpi.training.watch import Summary, Watch

LOADERS = "loaders"
"""The folder of the loaders' states in a run's folder."""


class Loop:
    """The rounds of a job, whose local steps the user's loop takes; `istmpi.Distributed` sets it
    up.

    Methods are collective, except `end`, `note` and `note_once`.
    """

    place: Place
    communicator: Communicator
    run: Run
    training: Training
    """The training of this rank; missing on a process that follows a leader."""
    _follows: MemberLoop | None = None
    """The loop of a member that follows the leader of its replica group; None on a rank."""
    streams: Streams
    guard: Guard
    _scoring: Scoring
    autocast: Autocast
    best: Best | None = None
    """The best score of the last evaluation that watched for one: its ``round`` and ``score``. In a
    run that is finished already, the best of its record."""
    _kept: Kept
    _bests: Bests
    _scores: Scores
    _noted: set[str]
    has_gradients = False
    """True once a parameter had a gradient."""
    summary: Summary | None = None
    """The summary of the last loop over rounds; None if no round was left to train."""
    _round: Round | None = None  # None outside a loop over rounds
    _in_rounds = False
    _left: Round | None = None
    """The round in which the program left its loop, until the next call of the job."""
    _is_noted = True
    """True if this round is reported."""
    passes: Passes | None = None
    """The loader of `epochs`; None in a run that is measured in rounds."""
    _record: RunRecord | None = None
    _folder: RunFolder | None = None

    def rounds(
        self,
        rounds: int,
        *,
        folder: str | Path = "",
        resume: str | Path | None = None,
        watch: Watch | None = None,
        signals: bool = True,
        deadline: float | None = None,
        network: bool = True,
    ) -> Iterator[Round]:
        """Yield the rounds that are left of ``rounds``, one by one. Collective.

        ``folder`` gets the record and the checkpoints; by default it is runs/NAME. ``resume``: a
        checkpoint, a run's folder, or ``"auto"`` to continue the run in ``folder``, if any.
        ``network``: save the trained network in the folder at the end. `istmpi.run_training`
        describes the other arguments, and the errors.
        """
        plan = partial(self._plan, {"train.rounds": rounds, "output.folder": str(folder)})
        stops = StopSources(deadline, signals)
        yield from self._iterate(plan, resume, watch, stops, network)

    def epochs(
        self,
        epochs: float,
        loader: Iterable[Any],
        *,
        accumulate: int = 1,
        local: bool = False,
        folder: str | Path = "",
        resume: str | Path | None = None,
        watch: Watch | None = None,
        signals: bool = True,
        deadline: float | None = None,
        network: bool = True,
    ) -> Iterator[Round]:
        """Yield the rounds that are left of ``epochs`` passes over the examples of ``loader``, a
        `DataLoader` of a map-style data set. Collective.

        In an epoch all ranks together take each example once; with ``local=True``, when each rank
        has its own data set, the rank with most examples takes each of its examples once. The
        number of rounds is rounded up, also after a resume on other ranks. ``round.take()`` then
        yields the loader's batches, ``accumulate`` in a local step. The other arguments are those
        of `rounds`.
        """

        def plan() -> Run:
            require_epochs(epochs)
            if self._follows:
                self.passes = Passes(loader, accumulate, local, 0)
                return self.run
            self._together("epochs")
            method = self.training.method
            passes = open_passes(loader, accumulate, local, method, self.communicator)
            settings = passes.settings(method.spec, epochs)
            return self._plan(settings | {"output.folder": str(folder)}, passes)

        stops = StopSources(deadline, signals)
        yield from self._iterate(plan, resume, watch, stops, network)

    def _plan(self, settings: Mapping[str, Any], passes: Passes | None = None) -> Run:
        """Return the run with ``settings`` of its length; keep the loader of its epochs."""
        self.passes = passes
        return self.run.override(settings, "Distributed")

    def _iterate(
        self,
        plan: Callable[[], Run],
        resume: str | Path | None,
        watch: Watch | None,
        stops: StopSources,
        network: bool,
    ) -> Iterator[Round]:
        """Yield the rounds that are left of the run that ``plan`` returns. Collective."""
        if self._follows:
            require_resumable(resume)
            plan()
            yield from self._follows.rounds(self, stops.signals)
            return
        self._require_ready(resume)
        run = plan()
        resumed = str(resume or "")
        open_here = partial(open_run, run, self.communicator, partial(self._begin, run), stops)
        membership = self.place.membership
        with (
            in_python(),
            self._watching(watch) as watch,
            open_here(watch, resumed, membership=membership) as recording,
        ):
            _, self._folder, record = recording
            self.run = self.training.run
            self.summary = None
            self._scores.clear()
            if record:
                yield from self._record_loop(record, resumed)
                self._end_loop(record, network)
            else:
                self._recall(resumed)

    def _recall(self, resumed: str) -> None:
        """Take the best score and the kept values of a run that is finished already, because the
        program may use them after its loop. Collective."""
        self._bests.restore(self._read_metrics())
        self.best = self._bests.find()
        self._kept.load(self.folder, self.training.rounds_done, resumed)

    @contextmanager
    def _watching(self, watch: Watch | None) -> Iterator[Watch | None]:
        """Yield the program's watch, or rank 0's own; take its bar away at the end, whatever ends
        the loop."""
        if watch or self.communicator.rank:
            yield watch
            return
        printing = Printing()
        try:
            yield printing
        finally:
            printing.stop()

    def _require_ready(self, resume: str | Path | None) -> None:
        """Raise ConfigError inside a loop over rounds, or for an unusable ``resume``."""
        if self._in_rounds:
            raise ConfigError(
                "rounds is called inside a loop over rounds. End this loop first, or use another "
                "job."
            )
        require_resumable(resume)
        if self._left:
            self._together("rounds")

    def _begin(self, run: Run, stop: StopSign, _: Copy | None) -> Training:
        examples = 0
        if self.passes:
            examples = self.passes.examples
        training = self.training
        training.begin_anew(run, stop, examples)
        self.place.tell(Begun(training.run, training.most_examples))
        return training

    def _record_loop(self, record: RunRecord, resumed: str) -> Iterator[Round]:
        """Load the scores, the kept values and the loaders' states of a resumed run, and yield the
        rounds that are left. Collective."""
        self._record = record
        training = self.training
        lines = self._read_metrics()
        self._scores.restore(lines)
        self._bests.restore(lines)
        self.streams.load(self.folder / LOADERS, training.rounds_done, resumed)
        self._kept.load(self.folder, training.rounds_done, resumed)
        self.place.tell(Restored(self.folder, self.streams.states, self._kept.collect()))
        if training.architecture.batch_norms and not training.rounds_done:
            self.note(
                "batch normalisations: before save or export, call job.evaluate with "
                "calibrate=loader."
            )
        # A stop may have reached some ranks already.
        reason = training.stop.reason if training.stop.asked() else ""
        training.stop.settle(self.communicator.allgather(reason))
        yield from self._train(record)
        self._round = None

    def _end_loop(self, record: RunRecord, network: bool) -> None:
        """End the record, and save the ``network`` in the folder. Collective."""
        if self.training.done and network and not self._scoring.calibrate_again():
            self.note(
                "the network is saved without moments of batch normalisation; evaluate it first."
            )
        self.summary = record.end(network)

    @property
    def folder(self) -> Path:
        """The run's folder. Raises ConfigError before the first round."""
        if self._follows and self._follows.folder:
            return self._follows.folder
        if self._folder is None:
            raise ConfigError("the run has no folder before job.rounds or job.epochs begins.")
        return self._folder.path

    @property
    def kept(self) -> dict[str, Any]:
        """This rank's values of `keep`; those of the run before it was resumed, from the first
        round on."""
        return self._kept.values

    def keep(self, **values: Any) -> None:
        """Keep values by name for the resumed run, which has them in `kept`.

        Each rank keeps its own. On another number of ranks, every rank gets those of rank 0. The
        values are saved with each checkpoint. Raises ConfigError for other values than tensors,
        numbers, text, and lists, tuples and dicts of them.
        """
        self._kept.update(values)

    def follow(self, stateful: Stateful) -> None:
        """Save the state of an object of the loop, such as a GradScaler, with each checkpoint."""
        self._kept.follow(stateful)

    def _save_own(self, dropped: bool = False) -> None:
        """Save what each rank has of its own after a round, or from before a ``dropped`` one."""
        rounds = self.training.rounds_done
        kept = self.run.checkpoint.keep
        self.streams.save(self.folder / LOADERS, rounds, kept, dropped)
        self._kept.save(self.folder, rounds, kept, dropped)

    def _train(self, record: RunRecord) -> Iterator[Round]:
        """Yield the rounds that are left; record and save each one. Collective."""
        training = self.training
        self._in_rounds = True
        # Weak, so that a job that the program drops can be freed.
        at_the_end.append(WeakMethod(self._note_if_left))
        more = self._has_more()
        while more:
            self.streams.begin_round()
            self._kept.begin_round()
            self._round = Round(self, training)
            try:
                yield self._round
            except BaseException:
                # A break, a return and any exception of the loop's body look the same here.
                self._leave_loop()
                raise
            finished = self._round.finished()
            training.told_to_end &= finished  # a repeated round decides again
            more = self._has_more()
            if not finished:
                self._save_own(dropped=True)
                break
            record.add(training.progress(self._scores.find()))
            if training.checkpoint_due or training.stop.reason or training.done:
                self._save_own()
        self._in_rounds = False

    def _leave_loop(self) -> None:
        if self._in_rounds and self._round:
            self._in_rounds = False
            self._left = self._round
            self._is_noted = False

    def _note_if_left(self) -> None:
        """Report once that the program left the loop before its last round."""
        self._leave_loop()  # a loop that the script still holds
        if self._left and not self._is_noted:
            self._is_noted = True
            self.note(f"{self._left.fate} End a loop early with job.end().")

    def _discard_left_round(self) -> None:
        """Discard the round in which the program left the loop, if any. Collective.

        When the loop is left, other ranks may be elsewhere, so a wait could hang. In the next call
        all ranks are here (decision 77).
        """
        if self._left:
            self._note_if_left()
            self._left.discard()
            self._left = None

    def _has_more(self) -> bool:
        """Return True if a round is left to train. Collective."""
        training = self.training
        if training.done or training.stop.reason:
            self._together("the end of the rounds")
            return False
        self._together(f"round {training.rounds_done + 1}")
        return True

    def end(self) -> None:
        """Make the current round the last one: the loop then ends, and the run is saved. Call it on
        all ranks."""
        if self._follows is None:
            self.training.told_to_end = True

    @property
    def is_first(self) -> bool:
        """True in one process of the job."""
        return self.communicator.rank == 0 and self._follows is None

    def restore(self, states: list[Any], kept: Mapping[str, Any]) -> None:
        """Take the states of loaders, and what is kept, that a leader has loaded."""
        self.streams.states = states
        self._kept.restore(kept)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl, one a round; empty before `rounds` is iterated over.
        Collective."""
        return self.place.answer("metrics", self._read_metrics)

    def _read_metrics(self) -> list[dict[str, Any]]:
        self._together("metrics")
        with self.communicator.agreed():
            lines = []
            if self._folder and self.communicator.rank == 0:
                lines = self._folder.metrics()
        return self.communicator.broadcast_from_root(lines)

    def _together(self, call: str) -> None:
        """Raise ConfigError on every rank if ranks are in different calls. Collective."""
        require_same(self.communicator.allgather(call))
        self._discard_left_round()
        self.streams.compare()
        with in_python():
            load_initial_weights(self.training)

    def note_once(self, message: str) -> None:
        if message not in self._noted:
            self._noted.add(message)
            self.note(message)

    def note(self, message: str) -> None:
        if self._record:
            self._record.note(message)
