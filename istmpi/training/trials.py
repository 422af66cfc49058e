"""Trials of values of settings, without torch: their records, rungs, the next values, the best."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from istmpi.config.methods import find_method_spec
from istmpi.errors import DivergedError
from istmpi.foreign import Fields
from istmpi.record import CURE, FAILURE, METRICS, RunFolder
from istmpi.settings import shown

PARTS = 4
"""The first rung is after this part of the rounds; each further rung is after twice as many."""
FINALISTS = 2
"""The fewest trials that go on to the next rung."""

Values = Mapping[str, Any]
"""Values by the dotted names of their settings."""
Item = TypeVar("Item")


class TimeIsUpError(Exception):
    """A method has used its minutes."""


@dataclass(frozen=True)
class Record:
    """The record of a trial's run so far, in its folder."""

    scores: Mapping[int, float] = field(default_factory=dict)
    """The scores on the validation split, by the number of rounds."""
    rounds: int = 0
    seconds: float = 0.0
    problem: str = ""
    """Why the run diverged; empty if it did not."""

    @staticmethod
    def read(path: Path) -> "Record":
        folder = RunFolder(path)
        lines: list[dict[str, Any]] = []
        if (path / METRICS).is_file():
            lines = folder.metrics()
        problem = ""
        if (path / FAILURE).is_file():
            subject = f"{path / FAILURE} is not a record of a failed run"
            failure = Fields.read(path / FAILURE, subject, CURE)
            # A run that failed for another reason is tried again.
            if failure.whole("exit_code") == DivergedError.exit_code:
                problem = failure.text("error")
        if not lines:
            return Record(problem=problem)
        scored = [line for line in lines if "validation_score" in line]
        return Record(
            scores={line["round"]: line["validation_score"] for line in scored},
            rounds=lines[-1]["round"],
            seconds=lines[-1]["seconds"],
            problem=problem,
        )


def list_rungs(rounds: int) -> list[int]:
    """Return the numbers of rounds after which the worse half of a method's trials stops; the last
    is all ``rounds``."""
    first = -(-rounds // PARTS)
    return sorted({first, min(2 * first, rounds), rounds})


def halve(
    items: Sequence[Item],
    rungs: Sequence[int],
    score: Callable[[Item, int], float | None],
    higher_is_better: bool,
) -> list[Item]:
    """Return the items that the last rung scored, the best first. Of equal ones, the one that
    the rung before scored better is first.

    After each rung, the better half goes on, at least `FINALISTS`. ``score`` returns None for an
    item that has no score there. After its TimeIsUpError the last rung that all finished decides,
    or else the scores of the first rung.
    """
    left = list(items)
    ranked: list[Item] = []
    for rung in rungs:
        scored = []
        is_complete = True
        try:
            for item in left:
                value = score(item, rung)
                if value is not None:
                    scored.append((value, item))
        except TimeIsUpError:
            is_complete = False
        if is_complete or rung == rungs[0]:
            # A sort keeps the order of equal scores, also in reverse.
            scored.sort(key=lambda pair: pair[0], reverse=higher_is_better)
            ranked = [item for _, item in scored]
        if not is_complete:
            break
        left = ranked[: max(-(-len(left) // 2), FINALISTS)]
    return ranked


def list_values(method: str, grid: Mapping[str, Sequence[Any]]) -> list[Values]:
    """Return all combinations of the values of settings that the method reads."""
    reads = find_method_spec(method).reads
    settings = []
    for setting in grid:
        section, _, key = setting.partition(".")
        if section != "method" or key in reads:
            settings.append(setting)
    combinations = product(*(grid[setting] for setting in settings))
    return [dict(zip(settings, values, strict=True)) for values in combinations]


def list_beyond(best: Values, tried: Sequence[Values]) -> list[Values]:
    """Return the best values with one of them, on the edge of those tried, replaced by the next
    beyond; a list for each such setting."""
    beyond: list[Values] = []
    for setting, value in best.items():
        following = find_next(value, [values[setting] for values in tried])
        if following is not None:
            beyond.append({**best, setting: following})
    return beyond


def find_next(value: Any, tried: Sequence[Any]) -> float | None:
    """Return the number beyond ``value``, if it is the least or the largest of the numbers tried:
    as many times larger or smaller as it is than its neighbour. None if there is none."""
    in_order = sorted({*filter(_is_positive, tried)})
    if len(in_order) < 2 or not all(map(_is_positive, tried)):
        return None
    neighbours = {in_order[0]: in_order[1], in_order[-1]: in_order[-2]}
    if value not in neighbours:
        return None
    beyond = value * value / neighbours[value]
    if all(isinstance(number, int) for number in in_order):
        beyond = round(beyond)
        # Small whole numbers, such as 1 of 1 and 2, have no whole one beyond.
        if beyond in {0, *in_order}:
            return None
        return beyond
    return float(f"{beyond:.3g}")


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and value > 0


def describe_values(values: Values) -> str:
    words = []
    for setting, value in values.items():
        words.append(f"{setting} = {shown(value)}")
    return ", ".join(words)


def name_folder(name: str, values: Values) -> str:
    """Return the name of the folder of a method's trial."""
    words = [name]
    for setting, value in values.items():
        words.append(f"{setting.rpartition('.')[2]}={value}")
    # A value may be a text with any character.
    return re.sub(r"[^\w.=,+-]+", "_", "-".join(words))
