"""A finding: a fact about this machine, its state, and a cure."""

from dataclasses import dataclass
from functools import partial

STATES = ("green", "yellow", "red")
"""It works; it works, but costs time or safety; it does not work."""


@dataclass(frozen=True)
class Finding:
    """A line of the report. It has a cure, unless its state is green or its fact names the cure."""

    state: str
    name: str
    fact: str
    cure: str = ""


green = partial(Finding, "green")
yellow = partial(Finding, "yellow")
red = partial(Finding, "red")
