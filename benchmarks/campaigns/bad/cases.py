"""What a case of the campaign is: a command line, and the files that it runs on."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY = ["--hidden", "4", "--rounds", "1", "--local-steps", "1", "--batch", "4", "--out", "run"]
"""Training that takes no time."""


@dataclass(frozen=True)
class Case:
    """One command line; its files lie in the folder that it runs in."""

    words: list[str]
    refused: bool = False
    """It must not be taken: exit code 0 is wrong."""
    codes: tuple[int, ...] = (0, 2, 3, 74)


@dataclass(frozen=True)
class Assets:
    """Valid files that take a moment to make: a run's folder with its network, for data of three kinds."""

    digits: Path
    speech: Path
    images: Path
    arrays: Path


Maker = Callable[[random.Random, Path, Assets], Case]


def max_bad(draw: random.Random) -> list[str]:
    return one_of(draw, ([], ["--max-bad", "0.9"], ["--max-bad", draw.choice(("nan", "-1", "2", "inf", "x"))]))


def one_of(draw: random.Random, choices: Sequence[Any]) -> Any:
    return draw.choice(choices)
