"""The base class of loggers, and `LoggedWatch`, which passes the events of a run to loggers."""

import re
from collections.abc import Callable, Mapping
from textwrap import shorten
from typing import Any

from istmpi.foreign import reason
from istmpi.record import RunFolder
from istmpi.training.progress import Progress
from istmpi.training.watch import Watch


class Logger(Watch):
    """A watch that sends runs' records to another program; a resumed run continues its log
    there."""

    name = ""

    def _known_as(self, folder: RunFolder) -> str:
        path = folder.path / f"{self.name}-run"
        return path.read_text(encoding="utf-8").strip() if path.exists() else ""

    def _be_known_as(self, folder: RunFolder, name: str) -> None:
        folder.write(f"{self.name}-run", name + "\n")


def figures(progress: Progress) -> dict[str, float]:
    """Return a record's numbers without the round. Related names get a prefix, so that programs
    plot them together."""
    numbers = {
        name: value for name, value in progress.record().items() if isinstance(value, int | float)
    }
    del numbers["round"]
    return {_grouped(name): value for name, value in numbers.items()}


def _grouped(name: str) -> str:
    if re.match(r"rank\d+_", name):
        return f"by_rank/{name}"
    return f"phases/{name}" if name.endswith("_seconds") and name != "round_seconds" else name


LONGEST_REASON = 300
LOGGED = ("started", "progressed", "finished", "closed")


class LoggedWatch:
    """Passes calls to a watch, and calls in `LOGGED` to loggers. A logger that raises is switched
    off and reported."""

    def __init__(self, watch: Watch, loggers: Mapping[str, Watch]):
        self._watch, self._loggers = watch, dict(loggers)

    def __getattr__(self, event: str) -> Callable[..., None]:
        def tell_all(*about: Any) -> None:
            getattr(self._watch, event)(*about)
            for name, logger in list(self._loggers.items()) if event in LOGGED else ():
                try:
                    getattr(logger, event)(*about)
                except Exception as error:  # from the library or the place where it writes
                    del self._loggers[name]
                    words = shorten(reason(error), LONGEST_REASON, placeholder=" ...")
                    self._watch.noticed(
                        f"--log {name} is switched off: {words}. The run continues."
                    )

        return tell_all
