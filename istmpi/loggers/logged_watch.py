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
    """A watch that passes everything on, also to loggers of the runs; one that raises is switched off and named."""

    def __init__(self, watch: Watch, loggers: Mapping[str, Watch]):
        self._watch, self._loggers = watch, dict(loggers)

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        self._tell_all("started", training, folder, saver)

    def progressed(self, progress: Progress) -> None:
        self._tell_all("progressed", progress)

    def finished(self, summary: Summary) -> None:
        self._tell_all("finished", summary)

    def closed(self, error: IstmpiError | None) -> None:
        self._tell_all("closed", error)

    def _tell_all(self, event: str, *about: Any) -> None:
        getattr(self._watch, event)(*about)
        for name, logger in list(self._loggers.items()):
            try:
                getattr(logger, event)(*about)
            except Exception as error:  # a library's, or that of the place where it writes: nobody knows which
                del self._loggers[name]
                words = shorten(reason(error), LONGEST_REASON, placeholder=" ...")
                self._watch.noticed(f"--log {name} is switched off: {words}. The run goes on.")

    # The loggers need not know of these.

    def noticed(self, message: str) -> None:
        self._watch.noticed(message)

    def already_finished(self, folder: RunFolder) -> None:
        self._watch.already_finished(folder)

    def begun(self, turn: Turn, number: int, count: int) -> None:
        self._watch.begun(turn, number, count)

    def skipped(self, turn: Turn) -> None:
        self._watch.skipped(turn)

    def failed(self, turn: Turn, error: IstmpiError) -> None:
        self._watch.failed(turn, error)
