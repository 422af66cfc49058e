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


def figures(progress: Progress) -> dict[str, float]:
    """Return a record's numbers without the round.

    Related names get a prefix, so that programs plot them together.
    """
    numbers = {}
    for name, value in progress.record().items():
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
LOGGED = ("started", "progressed", "finished", "closed")
"""The events that loggers get. The display gets all events."""


class LoggedWatch:
    """Passes calls to a watch, and calls in `LOGGED` to loggers.

    A logger that raises is switched off and reported.
    """

    def __init__(self, watch: Watch, loggers: Mapping[str, Watch]):
        self._watch = watch
        self._loggers = dict(loggers)

    # Events are looked up by name, so that a new event of `Watch` needs no line here.
    def __getattr__(self, event: str) -> Callable[..., None]:
        def tell_all(*about: Any) -> None:
            getattr(self._watch, event)(*about)
            if event in LOGGED:
                self._tell_loggers(event, about)

        return tell_all

    def _tell_loggers(self, event: str, about: tuple[Any, ...]) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                getattr(logger, event)(*about)
            except Exception as error:  # from the library or the place where it writes
                del self._loggers[name]
                words = shorten(reason(error), LONGEST_REASON, placeholder=" ...")
                self._watch.noticed(f"--log {name} is switched off: {words}. The run continues.")
