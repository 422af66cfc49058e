"""A comparison as plain text cells: what tables on the console and in HTML both show."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from istmpi.report.comparison import OFF_THE_CLOCK, Comparison, Group, Spread, reached
from istmpi.report.comparison import best as best_of
from istmpi.report.names import differing, facts, text
from istmpi.report.styles import PHASES
from istmpi.report.units import energy, number, size
from istmpi.units import in_seconds


@dataclass(frozen=True)
class Sheet:
    """A table: a column for every method; a cell has one line or several."""

    title: str
    corner: str
    """Above the names of the rows."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    best: tuple[frozenset[int], ...] = ()
    """For each row the columns with its best figure; none where there is nothing to choose from."""


TITLES: dict[str, tuple[str, Callable[[float], str]]] = {
    "seconds": ("Training time", in_seconds),
    "bytes": ("Bytes sent by all ranks", size),
    "examples": ("Examples consumed by all ranks", number),
    "joules": ("Energy", energy),
}
"""Of each figure: the title of its table, and how it is written."""


def sheets(comparison: Comparison) -> list[Sheet]:
    """All tables of a comparison: the way to each target, figure by figure, then where every method ended."""
    columns = tuple(group.label for group in comparison.groups)
    corner = f"{comparison.score_name} reached"
    made = []
    for figure in comparison.figures:
        title, write = TITLES[figure]
        rows, best = [], []
        for target in comparison.targets:
            cells = (_to_target(comparison, group, figure, target, write) for group in comparison.groups)
            rows.append((f"{target:g}", tuple(cells)))
            best.append(best_of([comparison.to_target(one, figure, target) for one in comparison.groups]))
        made.append(Sheet(f"{title} to a score", corner, columns, tuple(rows), tuple(best)))
    made.append(_ends(comparison, columns))
    if phases := tuple(_phases(comparison)):
        made.append(Sheet("Where the time went", "", columns, phases))
    if settings := tuple(_settings(comparison)):
        made.append(Sheet("Settings in which the methods differ", "", columns, settings))
    return made


def notes(comparison: Comparison) -> list[str]:
    """How to read the tables, and what went wrong."""
    lines = [
        "A score counts as reached at the first evaluation where the median of it and its two neighbours has reached "
        "it; figures are those of that evaluation. The clock stands still during evaluations.",
    ]
    if any(len(group.curves) > 1 for group in comparison.groups):
        lines.append(
            "Medians over repeats with lowest and highest below. A run that did not reach a score counts as slower "
            "than all that did. x: times the best method's figure, the median over seeds that both have; runs that "
            "share a seed count as one, with their median."
        )
    else:
        lines.append("x: times the best method's figure. One run of each method: repeats would show the noise.")
    if early := [f"{target:g} by {', '.join(names)}" for target, names in _at_once(comparison).items() if names]:
        lines.append(f"Reached by the first evaluation, perhaps long before: {'; '.join(early)}. Evaluate more often.")
    if comparison.watts is not None:
        lines.append(f"Energy: {comparison.watts:g} W a node, a rank a node, during training.")
    for group in comparison.groups:
        for curve in group.curves:
            if curve.problem:
                lines.append(f"{group.label}, seed {curve.seed}: {curve.problem}")
    return lines


def _at_once(comparison: Comparison) -> dict[float, list[str]]:
    """For each target, whose runs had reached it when they were first evaluated."""
    better = comparison.higher_is_better
    return {
        target: [
            group.label
            for group in comparison.groups
            if any(curve.points and reached(curve.points, target, better) is curve.points[0] for curve in group.curves)
        ]
        for target in comparison.targets
    }


def _to_target(comparison: Comparison, group: Group, figure: str, target: float, write: Callable[[float], str]) -> str:
    spread = comparison.to_target(group, figure, target)
    repeats = len(group.curves)
    if math.isinf(spread.median):
        few = f"\n{spread.reached} of {repeats} did" * (spread.reached > 0)
        return f"not reached{few}"
    ratio = comparison.ratio(group, figure, target)
    more = "" if ratio is None else f"  {times(ratio)}"
    return f"{write(spread.median)}{more}{_range(spread, write, repeats)}"


def times(ratio: float) -> str:
    """How many times a figure is another: ``1.90x``."""
    return f"{ratio:.2f}x" if ratio < 9.95 else f"{ratio:.1f}x" if ratio < 99.5 else f"{ratio:,.0f}x"


def _range(spread: Spread, write: Callable[[float], str], repeats: int) -> str:
    if repeats < 2 or spread.range is None:
        return ""
    low, high = map(write, spread.range)
    lines = [f"{low} to {high}"] * (low != high) + [f"{spread.reached} of {repeats}"] * (spread.reached < repeats)
    return f"\n{', '.join(lines)}" if lines else ""


def _ends(comparison: Comparison, columns: tuple[str, ...]) -> Sheet:
    """Where every method ended; after as many rounds cheaper is better, else only the score and the speed compare."""
    groups = comparison.groups

    def row(name: str, cell: Callable[[Group], str]) -> tuple[str, tuple[str, ...]]:
        return name, tuple(cell(group) for group in groups)

    def ended(figure: str) -> Callable[[Group], str]:
        write = TITLES[figure][1]
        return lambda group: _spread(comparison.to_end(group, figure), write, len(group.curves))

    rows = [
        row(
            f"final {comparison.score_name}",
            lambda group: _spread(comparison.final(group), "{:.4f}".format, len(group.curves)),
        ),
        row("rounds", lambda group: _each(group, [curve.points[-1].round for curve in group.curves if curve.points])),
        row("ranks", lambda group: _each(group, [curve.ranks for curve in group.curves if curve.ranks])),
        row("training time", ended("seconds")),
        row("examples a second", lambda group: _spread(_speed(group), number, len(group.curves))),
        row("sent by all ranks", ended("bytes")),
        row("sent by a rank", lambda group: _spread(_sent_by_one(group), size, len(group.curves))),
    ]
    if comparison.watts is not None:
        rows.append(row("energy", ended("joules")))
    best = {
        rows[0][0]: best_of([comparison.final(group) for group in groups], comparison.higher_is_better),
        "examples a second": best_of([_speed(group) for group in groups], higher=True),
    }
    if len({curve.points[-1].round for group in groups for curve in group.curves if curve.points}) == 1:
        ends = {"training time": "seconds", "sent by all ranks": "bytes", "energy": "joules"}
        for name, figure in ends.items():
            if figure in comparison.figures:
                best[name] = best_of([comparison.to_end(group, figure) for group in groups])
    return Sheet("At the end", "", columns, tuple(rows), tuple(best.get(name, frozenset()) for name, _ in rows))


def _settings(comparison: Comparison) -> list[tuple[str, tuple[str, ...]]]:
    known = [facts(group.curves[0]) for group in comparison.groups]
    return [(key, tuple(text(one[key]) if key in one else "" for one in known)) for key in differing(known)]


def _spread(spread: Spread, write: Callable[[float], str], repeats: int) -> str:
    return f"{write(spread.median)}{_range(spread, write, repeats)}" if spread.values else ""


def _each(group: Group, values: Sequence[int]) -> str:
    return " or ".join(map(str, dict.fromkeys(values)))


def _speed(group: Group) -> Spread:
    ends = [curve.points[-1] for curve in group.curves if curve.points]
    return Spread(tuple(end.examples / end.seconds for end in ends if end.seconds))


def _sent_by_one(group: Group) -> Spread:
    return Spread(tuple(curve.points[-1].bytes / curve.ranks for curve in group.curves if curve.points and curve.ranks))


def _phases(comparison: Comparison) -> list[tuple[str, tuple[str, ...]]]:
    """Seconds of each phase and its share of the training time."""
    by_group = [comparison.phases(group) for group in comparison.groups]
    names = dict.fromkeys(name for phases in by_group for name in phases)
    rows = []
    order = [*PHASES, *(name for name in names if name not in PHASES)]
    for name in sorted(names, key=lambda one: (one in OFF_THE_CLOCK, order.index(one))):
        cells = []
        for phases in by_group:
            total = sum(spent for phase, spent in phases.items() if phase not in OFF_THE_CLOCK)
            share = f"  {phases.get(name, 0) / total:.0%}" if name not in OFF_THE_CLOCK and total else ""
            cells.append(f"{in_seconds(phases[name])}{share}" if name in phases else "")
        rows.append((f"{name} (not on the clock)" if name in OFF_THE_CLOCK else name, tuple(cells)))
    return rows
