"""The calls with which the leader of a replica group tells its members what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Begin:
    """A leader's call to begin a round with its subnet."""

    number: int
    """The number of rounds done."""
    method: int
    """The number of methods that the leader has made before this one, such as one for each size."""
    side: int
    lengths: dict[str, int]
    scale: dict[str, float] | None
    is_new: bool
    """True if the subnet's network is new, so that its frozen values and buffers follow, too."""
    steps: int | None
    """The number of steps that a new optimizer's state begins with; None for the present one."""
    keeps_state: bool
    """True if the optimizer's state follows, too."""


@dataclass(frozen=True)
class Step:
    """A leader's call to take a local step of the run, ``number``, at a learning rate."""

    number: int
    local_step: int
    rate: float
    options: list[dict[str, Any]]
    """The options of each group of a program's optimizer, which a schedule has set; empty if none
    has."""
    skipped: int = 0
    """The number of earlier steps of the round that the leader's loop has left out."""


@dataclass(frozen=True)
class Begun:
    """A leader's call to begin the rounds of a user's own loop."""

    # Settings are in a room above.
    run: Any
    most_examples: dict[int, int]


@dataclass(frozen=True)
class Restored:
    """The values that a leader has loaded to resume a user's own loop in a ``folder``."""

    folder: Path
    states: list[Any]
    """The states of the user's loaders."""
    kept: dict[str, Any]
    """The values that the program has kept, and the states of its objects."""


@dataclass(frozen=True)
class NextRound:
    """A leader's call to begin a round of a user's own loop, after ``done`` rounds, of so many
    local ``steps``."""

    done: int
    steps: int


@dataclass(frozen=True)
class Outcome:
    """The end of a round of a user's own loop: True if all ranks completed it."""

    committed: bool


@dataclass(frozen=True)
class Refresh:
    """A leader's call to take its values of some weights, which changed between two steps."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Collect:
    """A leader's call for the losses of a round's local steps, of which its loop has left out
    ``skipped``."""

    skipped: int
