"""A watch with loggers beside it, none of which is a reason for a run to fail."""

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
from istmpi.training.watch import Summary, Watch

LONGEST_REASON = 300


class LoggedWatch(ComparisonWatch):
    """Tells a watch everything, and loggers of the runs; a logger that raises is switched off, which is told."""

    def __init__(self, watch: Watch, loggers: Mapping[str, Watch]):
        self._watch, self._loggers = watch, dict(loggers)

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        self._watch.started(training, folder, saver)
        self._tell("started", training, folder, saver)

    def progressed(self, progress: Progress) -> None:
        self._watch.progressed(progress)
        self._tell("progressed", progress)

    def noticed(self, message: str) -> None:
        self._watch.noticed(message)

    def finished(self, summary: Summary) -> None:
        self._watch.finished(summary)
        self._tell("finished", summary)

    def already_finished(self, folder: RunFolder) -> None:
        self._watch.already_finished(folder)

    def closed(self, error: IstmpiError | None) -> None:
        self._watch.closed(error)
        self._tell("closed", error)

    # The turns of a comparison; who watches one run is never told of any.

    def begun(self, turn: Turn, number: int, count: int) -> None:
        self._watch.begun(turn, number, count)

    def skipped(self, turn: Turn) -> None:
        self._watch.skipped(turn)

    def failed(self, turn: Turn, error: IstmpiError) -> None:
        self._watch.failed(turn, error)

    def _tell(self, event: str, *about: Any) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                getattr(logger, event)(*about)
            except Exception as error:  # of a library, or of what it writes to: nobody knows which
                del self._loggers[name]
                words = shorten(reason(error), LONGEST_REASON, placeholder=" ...")
                self._watch.noticed(f"--log {name} is switched off: {words}. The run goes on.")
