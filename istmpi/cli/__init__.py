"""The command line: each command parses its options, calls the library and prints."""

import os
import sys
from types import TracebackType

from istmpi.signals import receiver

STOPPABLE = ("train", "compare")
"""Commands that save and stop when they get a signal."""
_AT_ONCE = {"-h", "--help", "--dry-run"}


def _report_no_interrupt(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


# This precedes the imports of the command, which take seconds, and a minute on a busy machine.
if os.path.basename(sys.argv[0]) == "istmpi":
    sys.excepthook = _report_no_interrupt
    if sys.argv[1:2] and sys.argv[1] in STOPPABLE and _AT_ONCE.isdisjoint(sys.argv):
        receiver()
