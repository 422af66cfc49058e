"""A display with loggers beside it, none of which is a reason for a run to fail."""

from __future__ import annotations

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
from istmpi.training.run import Summary, Watch

LONGEST_REASON = 300


class Beside(ComparisonWatch):
    """Tells a display everything, and loggers of the runs; one that raises is switched off, with a line that says so."""

    def __init__(self, display: Watch, loggers: Mapping[str, Watch]):
        self._display, self._loggers = display, dict(loggers)

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        self._display.started(training, folder, saver)
        self._tell("started", training, folder, saver)

    def progressed(self, progress: Progress) -> None:
        self._display.progressed(progress)
        self._tell("progressed", progress)

    def noticed(self, message: str) -> None:
        self._display.noticed(message)

    def finished(self, summary: Summary) -> None:
        self._display.finished(summary)
        self._tell("finished", summary)

    def already_finished(self, folder: RunFolder) -> None:
        self._display.already_finished(folder)

    def closed(self, error: IstmpiError | None) -> None:
        self._display.closed(error)
        self._tell("closed", error)

    def begun(self, turn: Turn, number: int, count: int) -> None:
        self._display.begun(turn, number, count)

    def skipped(self, turn: Turn) -> None:
        self._display.skipped(turn)

    def failed(self, turn: Turn, error: IstmpiError) -> None:
        self._display.failed(turn, error)

    def _tell(self, event: str, *about: Any) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                getattr(logger, event)(*about)
            except Exception as error:  # of a library, or of what it writes to: nobody knows which
                del self._loggers[name]
                words = shorten(reason(error), LONGEST_REASON, placeholder=" ...")
                self._display.noticed(f"--log {name} is switched off: {words}. The run goes on.")
