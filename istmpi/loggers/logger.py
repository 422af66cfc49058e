"""The base of the loggers, and a watch with loggers beside it, none of which is a reason for a run to fail."""

import re
from collections.abc import Callable, Mapping
from textwrap import shorten
from typing import Any

from istmpi.foreign import reason
from istmpi.record import RunFolder
from istmpi.training.progress import Progress
from istmpi.training.watch import Watch


class Logger(Watch):
    """A watch that tells another program of one run after the other; a run that goes on has the log that it had."""

    name = ""

    def _known_as(self, folder: RunFolder) -> str:
        path = folder.path / f"{self.name}-run"
        return path.read_text(encoding="utf-8").strip() if path.exists() else ""

    def _be_known_as(self, folder: RunFolder, name: str) -> None:
        folder.write(f"{self.name}-run", name + "\n")


def figures(progress: Progress) -> dict[str, float]:
    """The numbers of a record but for the round, in groups: the programs draw names with the same prefix together."""
    numbers = {name: value for name, value in progress.record().items() if not isinstance(value, str)}
    del numbers["round"]
    return {_grouped(name): value for name, value in numbers.items()}


def _grouped(name: str) -> str:
    if re.match(r"rank\d+_", name):
        return f"by_rank/{name}"
    return f"phases/{name}" if name.endswith("_seconds") and name != "round_seconds" else name


LONGEST_REASON = 300
LOGGED = ("started", "progressed", "finished", "closed")


class LoggedWatch:
    """A watch that passes everything on, also to loggers of the runs; one that raises is switched off and named."""

    def __init__(self, watch: Watch, loggers: Mapping[str, Watch]):
        self._watch, self._loggers = watch, dict(loggers)

    def __getattr__(self, event: str) -> Callable[..., None]:
        def tell_all(*about: Any) -> None:
            getattr(self._watch, event)(*about)
            for name, logger in list(self._loggers.items()) if event in LOGGED else ():
                try:
                    getattr(logger, event)(*about)
                except Exception as error:  # a library's, or that of the place where it writes: nobody knows which
                    del self._loggers[name]
                    words = shorten(reason(error), LONGEST_REASON, placeholder=" ...")
                    self._watch.noticed(f"--log {name} is switched off: {words}. The run continues.")

        return tell_all
