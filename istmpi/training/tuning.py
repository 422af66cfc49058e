"""Chooses settings of each method on held-out examples, before a comparison trains the methods.

All methods get the same values, and each value is a trial. A method's trials train to a quarter of
the rounds, the better half of them to half of the rounds, and the better half of these, at least
two, to the end. Scores are those of the validation split. If the best value is the least or the
largest of its setting, one value beyond it joins. Minutes only end what is not finished: no clock
decides between trials.
"""

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from istmpi.checkpoint.saver import Saver
from istmpi.comm import Communicator
from istmpi.comm.stopping import StopSources
from istmpi.config import Run
from istmpi.data.sources import open_for_training
from istmpi.errors import ConfigError, DivergedError, IstmpiError, StoppedError
from istmpi.methods.limits import require_read
from istmpi.names import NARROW, find_method_name
from istmpi.record import TUNING, RunFolder
from istmpi.training.comparison import (
    Comparison,
    ComparisonWatch,
    Turn,
    describe_differences,
    list_turns,
)
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.run import open_run
from istmpi.training.trials import (
    Record,
    TimeIsUpError,
    Values,
    describe_values,
    halve,
    list_beyond,
    list_rungs,
    list_values,
    name_folder,
)
from istmpi.training.watch import Watch

HELD_OUT = 0.1
"""The fraction of the training examples that trials hold out, unless the run or its data do."""


@dataclass(eq=False)
class Trial:
    """A run of a method with one value of each setting."""

    values: Values
    turn: Turn
    record: Record = field(default_factory=Record)

    def tree(self) -> dict[str, Any]:
        """Return the outcome as in tuning.json."""
        record = self.record
        score = None
        if record.scores:
            score = record.scores[max(record.scores)]
        return {
            "values": self.values,
            "rounds": record.rounds,
            "score": score,
            "seconds": record.seconds,
            "problem": record.problem,
        }


class Choice:
    """The trials of a method, of which `choose` finds the best. Collective."""

    best: Trial | None = None
    time_is_up = False

    def __init__(
        self,
        trials: Iterable[Trial],
        make: Callable[[Values], Trial],
        train: Callable[[Trial, int, float], None],
        communicator: Communicator,
        higher_is_better: bool,
        seconds: float,
    ):
        """``train`` trains a trial to a number of rounds, within seconds of training. ``seconds``:
        those of all trials together."""
        self.trials = [*trials]
        self._make = make
        self._train = train
        self._communicator = communicator
        self._higher = higher_is_better
        self._seconds = seconds
        self._rungs = list_rungs(self.trials[0].turn.run.train.rounds)

    def choose(self) -> Trial:
        """Train the trials, and return the best. Raises DivergedError if all diverged, ConfigError
        if the minutes were too few for one."""
        self.best = self._find_best()
        if self.best and not self.time_is_up:
            self._extend()
        if self.best is None:
            raise self._describe_failure()
        return self.best

    def _extend(self) -> None:
        """Let trials join whose values are next to the best one, if it is on an edge."""
        joining = self._list_joining()
        if not joining:
            return
        self.trials += joining
        best = self._find_best()
        # Otherwise the trials that joined have not been scored as the others.
        if not self.time_is_up:
            self.best = best

    def _list_joining(self) -> list[Trial]:
        """Return the trials that join because the best value is on the edge of those tried."""
        if self.best is None:
            return []
        joining = []
        for values in list_beyond(self.best.values, [trial.values for trial in self.trials]):
            # Not every setting has a value there: a fraction ends at 1.
            with suppress(ConfigError):
                joining.append(self._make(values))
        return joining

    def _find_best(self) -> Trial | None:
        usable = self.trials
        while True:
            ranked = halve(usable, self._rungs, self._score, self._higher)
            if ranked:
                return ranked[0]
            before = usable
            # If those that went on diverged later, the best that was stopped goes on.
            usable = [trial for trial in self.trials if not trial.record.problem]
            if len(usable) == len(before):
                return None

    def _score(self, trial: Trial, rounds: int) -> float | None:
        """Return a trial's score after so many rounds, for which it trains if it has not; None if
        it diverged before. Raises TimeIsUpError."""
        self._read()
        if rounds not in trial.record.scores and not trial.record.problem:
            others = sum(other.record.seconds for other in self.trials if other is not trial)
            if trial.record.seconds < self._seconds - others:
                self._train(trial, rounds, self._seconds - others)
                self._read()
            if rounds not in trial.record.scores and not trial.record.problem:
                self.time_is_up = True
                raise TimeIsUpError
        return trial.record.scores.get(rounds)

    def _read(self) -> None:
        """Read the records of all trials on rank 0, for all ranks."""
        with self._communicator.agreed():
            if self._communicator.rank == 0:
                for trial in self.trials:
                    trial.record = Record.read(trial.turn.folder)
        of_root = self._communicator.broadcast_from_root([trial.record for trial in self.trials])
        for trial, record in zip(self.trials, of_root, strict=True):
            trial.record = record

    def _describe_failure(self) -> IstmpiError:
        problems = [trial.record.problem for trial in self.trials if trial.record.problem]
        error: IstmpiError
        if problems:
            error = DivergedError(f"every value diverged; the first: {problems[0]}")
        else:
            error = ConfigError(
                f"train.max_minutes leaves {self._seconds:.3g} s for the trials of this method, "
                f"too few for {self._rungs[0]} rounds of one. Give more minutes or fewer values."
            )
        error.everywhere = True
        return error

    def tree(self) -> dict[str, Any]:
        """Return the outcome as in tuning.json."""
        chosen = None
        if self.best:
            chosen = self.best.values
        return {
            "chosen": chosen,
            "on_the_edge": bool(self._list_joining()),
            "time_is_up": self.time_is_up,
            "trials": [trial.tree() for trial in self.trials],
        }


class TunedComparison(Comparison):
    """A comparison of methods, each with the values of ``grid`` that are best on held-out examples.

    ``grid`` has at least two values of each setting. The trials are in the folder ``tuning``, their
    outcomes in ``tuning.json``. The repeats train the chosen values anew, on all training examples.
    `train.max_minutes` is the time of all runs together: each method gets as much, half of it for
    trials. Raises ConfigError for a setting that cannot be chosen.
    """

    def __init__(
        self,
        run: Run,
        methods: Sequence[str],
        repeats: int,
        communicator: Communicator,
        grid: Mapping[str, Sequence[Any]],
        deadline: float | None = None,
        signals: bool = False,
    ):
        self._grid = grid
        self._minutes = run.train.max_minutes
        half = self._minutes / len({*methods}) / 2
        self._seconds = 60 * half or inf
        self.choices: dict[str, Choice] = {}
        with communicator.agreed():
            for setting, values in grid.items():
                _require_usable(setting, values, run, methods)
            data = open_for_training(run.with_implied().data, communicator.rank, run.train.seed)
        self._scoring = data.scoring
        self._has_validation = "validation" in data.splits
        shared = run.override({"train.max_minutes": half / repeats})
        super().__init__(shared, methods, repeats, communicator, deadline, signals)

    def _describe(self) -> dict[str, Any]:
        record = super()._describe()
        record["tuned"] = {"values": self._grid, "minutes": self._minutes}
        # A record that was read has lists in place of tuples.
        return json.loads(json.dumps(record))

    def _refuse_runs(self, path: Path) -> str:
        turns = list_turns(self._runs, self._repeats, path)
        return describe_differences(turns, but_for=self._grid) or describe_differences(
            self._list_trials(path)
        )

    def _list_trials(self, folder: Path) -> Iterator[Turn]:
        """Yield the runs of all trials in ``folder``, without those that join."""
        for name, run in self._runs.items():
            for values in list_values(run.method.name, self._grid):
                yield self._make_trial(name, folder, values).turn

    def rehearse(self) -> None:
        super().rehearse()
        # Other rates need no other network, so the methods' own rehearsals are enough.
        if all(setting.startswith("optimizer.") for setting in self._grid):
            return
        for turn in self._list_trials(self.folder):
            self._rehearse(turn)

    def _make_trial(self, name: str, folder: Path, values: Values) -> Trial:
        """Return a trial of a method. Raises ConfigError for a value that a setting cannot have."""
        run = self._runs[name]
        rounds = run.train.rounds
        every = list_rungs(rounds)[0]
        settings = {
            **values,
            "evaluate.every": every,
            "checkpoint.every": every,
            "checkpoint.keep": 1,
            "checkpoint.wait": True,
            "checkpoint.best": False,
            "train.max_minutes": 0.0,
            # Scores the validation split, and never ends a run.
            "train.patience": rounds,
            "output.folder": str(folder / TUNING / name_folder(name, values)),
        }
        if not self._has_validation:
            settings["data.validation"] = HELD_OUT
        return Trial(values, Turn(name, run.override(settings)))

    def _carry_out(self, watch: ComparisonWatch) -> dict[str, IstmpiError]:
        failures: dict[str, IstmpiError] = {}
        chosen = {}
        for name, run in self._runs.items():
            grid = list_values(run.method.name, self._grid)
            chosen[name] = run
            if len(grid) < 2:
                continue
            try:
                values = self._choose(name, grid, watch.of_trials)
            except IstmpiError as error:
                if isinstance(error, StoppedError) or not error.everywhere:
                    raise
                failures[name] = error
                del chosen[name]
            else:
                chosen[name] = run.override(values)
        self.turns = list_turns(chosen, self._repeats, self.folder)
        return failures | super()._carry_out(watch)

    def _choose(self, name: str, grid: Iterable[Values], watch: ComparisonWatch) -> Values:
        """Return the values that are best for a method, and record how they were chosen."""
        make = partial(self._make_trial, name, self.folder)
        choice = Choice(
            trials=map(make, grid),
            make=make,
            train=partial(self._train, watch),
            communicator=self._communicator,
            higher_is_better=self._scoring.higher_is_better,
            seconds=self._seconds,
        )
        self.choices[name] = choice
        try:
            values = choice.choose().values
        except IstmpiError as error:
            if error.everywhere:
                self._record_choices()
            if not isinstance(error, StoppedError):
                watch.failed(choice.trials[0].turn, error)
            raise
        self._record_choices()
        watch.chose(name, describe_values(values))
        return values

    def _record_choices(self) -> None:
        with self._communicator.agreed():
            if self._communicator.rank == 0:
                tree = {
                    "settings": [*self._grid],
                    "score_name": self._scoring.score,
                    "rounds": max(run.train.rounds for run in self._runs.values()),
                    "methods": {name: choice.tree() for name, choice in self.choices.items()},
                }
                text = json.dumps(tree, indent=1)
                RunFolder(self.folder).write(f"{TUNING}.json", f"{text}\n")

    def _train(self, watch: ComparisonWatch, trial: Trial, rounds: int, seconds: float) -> None:
        """Train a trial to a number of rounds, or for seconds of training, and note if it diverges.
        Raises StoppedError if the comparison was stopped."""
        turn = trial.turn
        self._leave_if_asked(turn)
        watch.trying(turn, describe_values(trial.values), rounds)
        gc.collect()
        try:
            self._train_to(turn.run, _TrialWatch(watch), rounds, seconds)
        except StoppedError:
            self._leave_if_asked(turn)
            raise
        except DivergedError as error:
            if not error.everywhere:
                raise
            self._note_failure(turn, error)
            watch.failed(turn, error)

    def _train_to(self, run: Run, watch: Watch, rounds: int, seconds: float) -> None:
        begin = partial(Training, run, self._communicator)
        stops = StopSources(shared=self._stop)
        opening = open_run(run, self._communicator, begin, stops, watch, resume="auto")
        with opening as (training, _, record):
            assert record is not None, "a trial saves no network that would end its run"
            for progress in training.rounds():
                record.add(progress)
                if progress.round >= rounds or progress.seconds >= seconds:
                    return
            # Raises StoppedError, for nothing else ends the rounds earlier.
            record.save(network=False)


class _TrialWatch(Watch):
    """Passes on what a user must know of a trial, but not its score on the test split."""

    def __init__(self, watch: Watch):
        self._watch = watch

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        self._watch.started(training, folder, saver)

    def progressed(self, progress: Progress) -> None:
        self._watch.progressed(replace(progress, score=None))

    def noticed(self, message: str) -> None:
        # Each rung resumes the trial, and the line before says so.
        if not message.startswith("resuming from"):
            self._watch.noticed(message)


def _require_usable(setting: str, values: Iterable[Any], run: Run, methods: Sequence[str]) -> None:
    """Raise ConfigError if a value is wrong, or if a setting has no effect or does not go with
    narrow."""
    if NARROW in methods and setting.startswith("model."):
        raise ConfigError(
            f"--tune {setting} does not go with {NARROW}, whose network follows from the run's. "
            "Leave one out."
        )
    section, _, key = setting.partition(".")
    using = [find_method_name(name) for name in methods]
    for value in values:
        changed = run.override({setting: value}, "--tune")
        if section == "method":
            require_read(changed, [key], using)
