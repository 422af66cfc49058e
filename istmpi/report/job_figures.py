"""Bytes that a run's last job sent outside rounds, and its collective calls."""

from istmpi.comm.ledger import EVALUATION, ROUNDS, SAVING, START
from istmpi.foreign import Fields

TITLES = {
    EVALUATION: ("sent in evaluations", "B"),
    SAVING: ("sent to save", "B"),
    START: ("sent to load", "B"),
    "line_bytes": ("sent on the line, about", "B"),
    "resent_bytes": ("sent again by TCP, about", "B"),
    f"calls, {ROUNDS}": ("waits in rounds", ""),
    f"calls, {EVALUATION}": ("waits in evaluations", ""),
    f"calls, {SAVING}": ("waits to save", ""),
    f"calls, {START}": ("waits to load", ""),
}
"""The title of a figure and its unit, by the figure's name. A wait is a collective call: it takes a
round trip at least, and has no unit."""


def find_sent_outside(summary: Fields | None) -> dict[str, float]:
    """Return the bytes of evaluations, saving and loading, and the calls of all purposes, by the
    names of `TITLES`; empty if a file does not tell."""
    if summary is None or "sent" not in summary:
        return {}
    figures = {}
    sent = summary.inner("sent")
    for purpose in sent:
        if purpose != ROUNDS:
            figures[purpose] = sent.inner(purpose).figure("bytes", 0)
        # Calls between processes of a single host take no time.
        if "line_bytes" in summary:
            figures[f"calls, {purpose}"] = sent.inner(purpose).figure("calls", 0)
    for name in ("line_bytes", "resent_bytes"):
        if name in summary:
            figures[name] = summary.figure(name, 0)
    return figures
