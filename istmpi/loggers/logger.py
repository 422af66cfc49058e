"""The base class of loggers, and `LoggedWatch`, which passes the events of a run to loggers."""

import re
from collections.abc import Mapping
from textwrap import shorten
from typing import Any

from istmpi.checkpoint.saver import Saver
from istmpi.errors import IstmpiError
from istmpi.foreign import reason
from istmpi.record import RunFolder
from istmpi.training.comparison import ComparisonWatch, Turn
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.watch import Summary, Watch


class Logger(Watch):
    """A watch that sends runs' records to another program.

    A resumed run continues its log there.
    """

    name = ""

    def _read_name(self, folder: RunFolder) -> str:
        """Return the log's name in the other program; empty for a new run."""
        path = folder.path / f"{self.name}-run"
        return path.read_text(encoding="utf-8").strip() if path.exists() else ""

    def _write_name(self, folder: RunFolder, name: str) -> None:
        folder.write(f"{self.name}-run", name + "\n")


def list_settings(training: Training) -> dict[str, Any]:
    """Return the settings of a run by their dotted names, and the number of its ranks."""
    return training.run.flat() | {"ranks": training.communicator.size}


def figures(progress: Progress) -> dict[str, float]:
    """Return a record's numbers without the round.

    Related names get a prefix, so that programs plot them together.
    """
    numbers = {}
    for name, value in progress.record().items():
        # Programs take the round as the step, and texts cannot be plotted.
        if name != "round" and isinstance(value, int | float):
            numbers[_add_group(name)] = value
    return numbers


def _add_group(name: str) -> str:
    if re.match(r"rank\d+_", name):
        return f"by_rank/{name}"
    if name.endswith("_seconds") and name != "round_seconds":
        return f"phases/{name}"
    return name


LONGEST_REASON = 300


class LoggedWatch(ComparisonWatch):
    """Passes all events to a watch, and those of single runs to loggers.

    A logger that raises is switched off and reported.
    """

    def __init__(self, watch: Watch, loggers: Mapping[str, Watch]):
        self._watch = watch
        self._loggers = dict(loggers)

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        self._watch.started(training, folder, saver)
        self._tell_loggers("started", training, folder, saver)

    def progressed(self, progress: Progress) -> None:
        self._watch.progressed(progress)
        self._tell_loggers("progressed", progress)

    def noticed(self, message: str) -> None:
        self._watch.noticed(message)

    def finished(self, summary: Summary) -> None:
        self._watch.finished(summary)
        self._tell_loggers("finished", summary)

    def already_finished(self, folder: RunFolder) -> None:
        self._watch.already_finished(folder)

    def closed(self, error: IstmpiError | None) -> None:
        self._watch.closed(error)
        self._tell_loggers("closed", error)

    def begun(self, turn: Turn, number: int, count: int) -> None:
        if isinstance(self._watch, ComparisonWatch):
            self._watch.begun(turn, number, count)

    def skipped(self, turn: Turn) -> None:
        if isinstance(self._watch, ComparisonWatch):
            self._watch.skipped(turn)

    def failed(self, turn: Turn, error: IstmpiError) -> None:
        if isinstance(self._watch, ComparisonWatch):
            self._watch.failed(turn, error)

    @property
    def of_trials(self) -> ComparisonWatch:
        if isinstance(self._watch, ComparisonWatch):
            return self._watch
        return ComparisonWatch()

    def _tell_loggers(self, event: str, *about: object) -> None:
        # A copy, because a logger that fails is removed meanwhile.
        for name, logger in list(self._loggers.items()):
            try:
                getattr(logger, event)(*about)
            except Exception as error:  # from the library or the place where it writes
                del self._loggers[name]
                words = shorten(reason(error), LONGEST_REASON, placeholder=" ...")
                self._watch.noticed(f"--log {name} is switched off: {words}. The run continues.")
