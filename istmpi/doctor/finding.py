"""A finding: what was looked at, how it stands, and what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass

STATES = ("green", "yellow", "red")
"""Good; works but costs time or safety; does not work."""


@dataclass(frozen=True)
class Finding:
    """One line of the report; every state but green has a cure, unless the fact names it."""

    name: str
    state: str
    fact: str
    cure: str = ""


def green(name: str, fact: str) -> Finding:
    return Finding(name, "green", fact)


def yellow(name: str, fact: str, cure: str) -> Finding:
    return Finding(name, "yellow", fact, cure)


def red(name: str, fact: str, cure: str) -> Finding:
    return Finding(name, "red", fact, cure)


def worst(states: Iterable[str]) -> str:
    """The worst state of all; green where there is none."""
    return max(states, key=STATES.index, default="green")
