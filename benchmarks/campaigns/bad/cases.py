"""What a case of the campaign is: a command line, and the files that it runs on."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.campaigns.forked import Outcome

TINY = ["--hidden", "4", "--rounds", "1", "--local-steps", "1", "--batch", "4", "--out", "run"]
"""Training that takes no time."""


@dataclass(frozen=True)
class Case:
    """One command line; its files lie in the folder that it runs in."""

    words: list[str]
    refused: bool = False
    """It must not be taken: exit code 0 is wrong."""
    codes: tuple[int, ...] = (0, 2, 3, 74)
    right: Callable[[Path, str], str] | None = None
    """Of the folder and the output, where it was taken: what is not as it must be; empty where all is."""
    taken: bool = False
    """It must be taken: an error is wrong."""

    def problems(self, folder: Path, outcome: Outcome) -> list[str]:
        """What is wrong with the meaning that the files were given."""
        if outcome.code:
            return [f"refused: {outcome.err[-80:]!r}"] if self.taken and outcome.code in self.codes else []
        try:
            wrong = self.right(folder, outcome.out) if self.right else ""
        except Exception as error:  # of istmpi's reader, or for a result that is not there
            wrong = f"{type(error).__name__}: {error}"
        return [f"taken as something else: {wrong[:150]}"] if wrong else []


@dataclass(frozen=True)
class Assets:
    """Valid files that take a moment to make: a run's folder with its network, for data of three kinds."""

    digits: Path
    speech: Path
    images: Path
    arrays: Path
    table: Path
    """Of the columns ``formats.COLUMNS``; beside its network are ``same.csv`` and the ``answers.csv`` to it."""
    rows: Path
    """Of sparse rows that are counted from 1; likewise ``same.svm``."""


Maker = Callable[[random.Random, Path, Assets], Case]


def max_bad(draw: random.Random) -> list[str]:
    return one_of(draw, ([], ["--max-bad", "0.9"], ["--max-bad", draw.choice(("nan", "-1", "2", "inf", "x"))]))


def one_of(draw: random.Random, choices: Sequence[Any]) -> Any:
    return draw.choice(choices)
