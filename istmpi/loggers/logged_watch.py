"""A watch with loggers beside it, none of which is a reason for a run to fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from textwrap import shorten
from typing import Any

from istmpi.foreign import reason
from istmpi.training.watch import Watch

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
