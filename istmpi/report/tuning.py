"""The choice of settings in a comparison, as the file tuning.json has it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from istmpi.foreign import Fields, plain_value, printable
from istmpi.record import CURE, TUNING
from istmpi.report.labels import text


@dataclass(frozen=True)
class Trial:
    values: str
    """The values of the settings, in words."""
    rounds: int
    score: float | None
    """The last score on held-out examples; None if there is none."""
    problem: str


@dataclass(frozen=True)
class Choice:
    method: str
    trials: tuple[Trial, ...]
    chosen: str
    """The values that were chosen, in words; empty if none were."""
    on_the_edge: bool
    """True if values beyond those tried may be better."""
    time_is_up: bool


@dataclass(frozen=True)
class Tuning:
    """The choices of all methods of a comparison."""

    settings: str
    score_name: str
    rounds: int
    """The rounds of a trial that was not stopped."""
    choices: tuple[Choice, ...]

    @property
    def notes(self) -> list[str]:
        """The sentences on how to read the choices, and on what is missing."""
        lines = [
            f"{self.settings}: each method has the value with the best score on held-out examples "
            "of the training data. Only the better half of the values, and at least two, continued "
            "after a quarter and after half of the rounds. Then each method trained with its value "
            "from the start."
        ]
        for choice in self.choices:
            if choice.on_the_edge:
                lines.append(
                    f"{choice.method}: its value is on the edge of those tried, so one beyond may "
                    "be better."
                )
            if choice.time_is_up:
                lines.append(f"{choice.method}: its minutes ended before all values were tried.")
        return lines

    def list_rows(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return a row for each value, with a cell for each method."""
        values = [trial.values for choice in self.choices for trial in choice.trials]
        rows = []
        for value in sorted(dict.fromkeys(values), key=_sort_key):
            rows.append((value, tuple(self._describe(choice, value) for choice in self.choices)))
        return tuple(rows)

    def _describe(self, choice: Choice, value: str) -> str:
        """Return the cell of a method's trial, as two lines; empty if it had none."""
        for trial in choice.trials:
            if trial.values == value:
                break
        else:
            return ""
        if trial.score is None and not trial.problem:
            return "not tried"
        cell = "no score"
        if trial.score is not None:
            cell = f"{trial.score:.4f}"
        if trial.problem:
            return f"{cell}\ndiverged after round {trial.rounds}"
        if value == choice.chosen:
            return f"{cell}\nchosen"
        if trial.rounds < self.rounds:
            words = "stopped after"
            if choice.time_is_up:
                words = "not finished:"
            return f"{cell}\n{words} round {trial.rounds}"
        return cell


def read_tunings(folders: Iterable[Path]) -> tuple[Tuning, ...]:
    """Return how the comparisons in folders chose their settings; nothing for other folders."""
    tunings = []
    for folder in folders:
        path = folder / f"{TUNING}.json"
        if path.is_file():
            tunings.append(_read(path))
    return tuple(tunings)


def _read(path: Path) -> Tuning:
    tree = Fields.read(path, f"{path} does not hold the choices of a comparison", CURE)
    methods = tree.inner("methods")
    return Tuning(
        settings=", ".join(tree.texts("settings")),
        score_name=tree.text("score_name"),
        rounds=tree.whole("rounds"),
        choices=tuple(_read_choice(method, methods.inner(method)) for method in methods),
    )


def _read_choice(method: str, tree: Fields) -> Choice:
    chosen = ""
    if tree.value("chosen") is not None:
        chosen = _describe_values(tree.inner("chosen").tree)
    return Choice(
        method=printable(method),
        trials=tuple(map(_read_trial, tree.inners("trials"))),
        chosen=chosen,
        on_the_edge=bool(tree.value("on_the_edge")),
        time_is_up=bool(tree.value("time_is_up")),
    )


def _read_trial(tree: Fields) -> Trial:
    score = None
    if tree.value("score") is not None:
        score = tree.score("score")
    return Trial(
        values=_describe_values(tree.inner("values").tree),
        rounds=tree.whole("rounds"),
        score=score,
        problem=tree.text("problem"),
    )


def _describe_values(values: Mapping[str, Any]) -> str:
    return ", ".join(printable(text(plain_value(value))) for value in values.values())


def _sort_key(value: str) -> tuple[float, str]:
    """Return a key that sorts numbers by their size, and texts behind them."""
    try:
        return float(value), ""
    except ValueError:
        return float("inf"), value
