"""A comparison as tables of plain text, for the console and HTML, and as a verdict in sentences."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from istmpi.record import has_direction
from istmpi.report.comparison import (
    FIGURES,
    OFF_THE_CLOCK,
    Comparison,
    Group,
    Spread,
    sort_phases,
)
from istmpi.report.comparison import best as best_of
from istmpi.report.labels import facts, find_differences, text
from istmpi.units import in_seconds, number, size

Rows = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Sheet:
    """A table with a column for each group of runs. A cell has one line or several."""

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: Rows
    best: tuple[frozenset[int], ...] = ()
    """The numbers of the columns with the best figure, for each row."""


TITLES: dict[str, tuple[str, Callable[[float], str]]] = {
    "seconds": ("Training time", in_seconds),
    "bytes": ("Bytes sent by all ranks", size),
    "examples": ("Examples consumed by all ranks", number),
}


def sheets(comparison: Comparison) -> list[Sheet]:
    columns = tuple(group.label for group in comparison.groups)
    sheets = [_list_targets(comparison, figure, columns) for figure in FIGURES]
    sheets.append(_list_ends(comparison, columns))
    tables = {
        "Time by phase": _phases(comparison),
        "Settings that differ": _settings(comparison),
    }
    # Runs of other programs may have no phases, equal runs no settings that differ.
    for title, rows in tables.items():
        if rows:
            sheets.append(Sheet(title, "", columns, rows))
    for tuning in comparison.tunings:
        title = f"Choice of {tuning.settings}: {tuning.score_name} on held-out examples"
        methods = tuple(choice.method for choice in tuning.choices)
        sheets.append(Sheet(title, tuning.settings, methods, tuning.list_rows()))
    return sheets


def _list_targets(comparison: Comparison, figure: str, columns: tuple[str, ...]) -> Sheet:
    """Return the table of what each group spent to reach each target."""
    title, write = TITLES[figure]
    rows = []
    best = []
    for target in comparison.targets:
        spreads = []
        cells = []
        for group in comparison.groups:
            spread = comparison.to_target(group, figure, target)
            spreads.append(spread)
            cells.append(_write_reached(spread, comparison.ratio(group, figure, target), write))
        rows.append((f"{target:g}", tuple(cells)))
        best.append(best_of(spreads))
    return Sheet(
        title=f"{title} to a score",
        corner=f"{comparison.score_name} reached{comparison.splits[0]}",
        columns=columns,
        rows=tuple(rows),
        best=tuple(best),
    )


def _settings(comparison: Comparison) -> Rows:
    by_group = [facts(group.curves[0]) for group in comparison.groups]
    rows = []
    for key in find_differences(by_group):
        cells = [text(settings[key]) if key in settings else "" for settings in by_group]
        rows.append((key, tuple(cells)))
    return tuple(rows)


def notes(comparison: Comparison) -> list[str]:
    """Return sentences on how to read a comparison, and on runs that are incomplete."""
    lines = [
        "A score counts as reached at the first evaluation where the median of it and its two "
        "neighbours reaches it; the figures are from that evaluation. Evaluation time does not "
        "count."
    ]
    if any(len(group.curves) > 1 for group in comparison.groups):
        lines.append(
            "Figures are medians over repeats, with lowest and highest below. A run that did not "
            "reach a score counts as slower than those that did. x: ratio to the best method's "
            "figure, the median over common seeds. Runs with the same seed count as a single run, "
            "their median."
        )
    else:
        lines.append(
            "x: ratio to the best method's figure. Each method ran once; repeats would show the "
            "noise."
        )
    for group in comparison.groups:
        for curve in group.curves:
            if curve.problem:
                lines.append(f"{group.label}, seed {curve.seed}: {curve.problem}")
    for tuning in comparison.tunings:
        lines += tuning.notes
    return lines


def _write_reached(spread: Spread, ratio: float | None, write: Callable[[float], str]) -> str:
    """Return a cell: the median, its ratio to the best group's, and the range of repeats."""
    # The median is infinite unless more than half of the runs reached the target.
    if math.isinf(spread.median):
        if spread.reached == 0:
            return "not reached"
        return f"not reached\n{spread.reached} of {len(spread.values)} did"
    cell = write(spread.median)
    if ratio is not None:
        cell += f"  {times(ratio)}"
    return cell + _range(spread, write, len(spread.values))


def times(ratio: float) -> str:
    if ratio < 9.95:
        return f"{ratio:.2f}x"
    if ratio < 99.5:
        return f"{ratio:.1f}x"
    return f"{ratio:,.0f}x"


def _range(spread: Spread, write: Callable[[float], str], repeats: int) -> str:
    """Return a cell's second line: the lowest and the highest figure, and how many runs have it."""
    # A single run has no spread, and a target that no run reached no range.
    if repeats < 2 or spread.range is None:
        return ""
    remarks = []
    low, high = map(write, spread.range)
    if low != high:
        remarks.append(f"{low} to {high}")
    if spread.reached < repeats:
        remarks.append(f"{spread.reached} of {repeats}")
    if not remarks:
        return ""
    return f"\n{', '.join(remarks)}"


@dataclass
class _Ends:
    """The rows of final figures."""

    comparison: Comparison
    rows: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    best: list[frozenset[int]] = field(default_factory=list)

    def add_texts(self, name: str, texts: Iterable[str]) -> None:
        self.rows.append((name, tuple(texts)))
        # Texts are not compared, but each row needs an entry.
        self.best.append(frozenset())

    def add(
        self,
        name: str,
        spreads: Sequence[Spread],
        write: Callable[[float], str],
        best: frozenset[int] = frozenset(),
    ) -> None:
        cells = []
        for group, spread in zip(self.comparison.groups, spreads):
            cell = ""
            if spread.values:
                cell = write(spread.median) + _range(spread, write, len(group.curves))
            cells.append(cell)
        self.rows.append((name, tuple(cells)))
        self.best.append(best)

    def add_end(self, name: str, figure: str, comparable: bool) -> None:
        """Add a row of costs; the lowest is the best only among runs of equal length."""
        spreads = [self.comparison.to_end(group, figure) for group in self.comparison.groups]
        best: frozenset[int] = frozenset()
        if comparable:
            best = best_of(spreads)
        self.add(name, spreads, TITLES[figure][1], best)


def _list_ends(comparison: Comparison, columns: tuple[str, ...]) -> Sheet:
    """Return the table of final figures."""
    rounds = []
    ranks = []
    speeds = []
    sent = []
    for group in comparison.groups:
        # A run without an evaluation has no end yet.
        curves = [curve for curve in group.curves if curve.points]
        ends = [curve.points[-1] for curve in curves]
        rounds.append([point.round for point in ends])
        ranks.append([curve.ranks_in_turn for curve in group.curves if curve.ranks_in_turn])
        speeds.append(
            Spread(tuple(point.examples / point.seconds for point in ends if point.seconds))
        )
        sent.append(Spread(tuple(curve.sent_by_a_rank for curve in curves if curve.ranks)))
    numbers = set()
    for rounds_of_group in rounds:
        numbers.update(rounds_of_group)
    # Costs of runs with different numbers of rounds do not say which method is better.
    comparable = len(numbers) == 1
    final = [comparison.final(group) for group in comparison.groups]

    rows = _Ends(comparison)
    best_scores = best_of(final, comparison.higher_is_better)
    name = f"final {comparison.score_name}{comparison.splits[1]}"
    rows.add(name, final, "{:.4f}".format, best_scores)
    _add_further(rows)
    rows.add_texts("rounds", map(_join_distinct, rounds))
    rows.add_texts("ranks", map(_join_distinct, ranks))
    rows.add_end("training time", "seconds", comparable)
    rows.add("examples a second", speeds, number, best_of(speeds, higher=True))
    rows.add_end("sent by all ranks", "bytes", comparable)
    rows.add("sent by a rank", sent, size)
    _add_job_figures(rows)
    return Sheet("Final figures", "", columns, tuple(rows.rows), tuple(rows.best))


def _add_job_figures(rows: _Ends) -> None:
    """Add a row for each figure of the last job that some run has."""
    groups = rows.comparison.groups
    titles: dict[tuple[str, str], None] = {}
    for group in groups:
        for curve in group.curves:
            titles.update(dict.fromkeys(curve.job_figures))
    for title in titles:
        spreads = []
        for group in groups:
            figures = [curve.job_figures.get(title, 0.0) for curve in group.curves]
            spreads.append(Spread(tuple(figure for figure in figures if figure)))
        if any(spread.values for spread in spreads):
            name, unit = title
            describe: Callable[[float], str] = partial(size, unit=unit)
            if not unit:
                describe = "{:,.0f}".format
            rows.add(name, spreads, describe)


def _add_further(rows: _Ends) -> None:
    """Add a row for each further score that runs have."""
    comparison = rows.comparison
    names: dict[str, None] = {}
    for group in comparison.groups:
        for curve in group.curves:
            names.update(dict.fromkeys(curve.further))
    for name in names:
        spreads = []
        for group in comparison.groups:
            values = [curve.further[name] for curve in group.curves if name in curve.further]
            spreads.append(Spread(tuple(values)))
        best: frozenset[int] = frozenset()
        if has_direction(name):
            # Of the further scores, only the error is better if it is lower.
            best = best_of(spreads, higher=name != "RMSE")
        rows.add(f"final {name}{comparison.splits[1]}", spreads, "{:.4f}".format, best)


def _join_distinct(values: Sequence[object]) -> str:
    return " or ".join(map(str, dict.fromkeys(values)))


def _phases(comparison: Comparison) -> Rows:
    """Return rows of each phase's seconds, with their share of the training time."""
    by_group = [comparison.phases(group) for group in comparison.groups]
    rows = []
    for name in sort_phases(name for phases in by_group for name in phases):
        counts = name not in OFF_THE_CLOCK
        cells = []
        for phases in by_group:
            cell = ""
            if name in phases:
                cell = in_seconds(phases[name])
                total = sum(spent for key, spent in phases.items() if key not in OFF_THE_CLOCK)
                # A share is one of the training time, so it leaves out evaluation and saving.
                if counts and total:
                    cell += f"  {phases[name] / total:.0%}"
            cells.append(cell)
        if not counts:
            name = f"{name} (not counted)"
        rows.append((name, tuple(cells)))
    return tuple(rows)


def verdict(comparison: Comparison) -> str:
    """Return a sentence for each evaluated group, fastest first, then warnings.

    The target is the hardest reached.
    """
    groups = [group for group in comparison.groups if any(curve.points for curve in group.curves)]
    if not groups:
        return "The runs have no evaluation to compare yet."
    target = _hardest_reached(comparison, groups)
    in_order = sorted(groups, key=lambda group: _seconds(comparison, group, target))
    sentences = [_sentence(comparison, group, target) for group in in_order]
    # With a single group there is nothing to be mistaken for noise.
    if all(len(group.curves) == 1 for group in groups) and len(groups) > 1:
        sentences.append("Each method ran once, so noise does not show.")
    failed = []
    for group in comparison.groups:
        if any(curve.problem for curve in group.curves):
            failed.append(group.label)
    if failed:
        sentences.append(f"Some runs of {', '.join(failed)} did not finish.")
    return " ".join(sentences)


def _seconds(comparison: Comparison, group: Group, target: float) -> float:
    return comparison.to_target(group, "seconds", target).median


def _hardest_reached(comparison: Comparison, groups: Sequence[Group]) -> float:
    """Return the hardest target that a group reached; the easiest if none; NaN without targets."""
    if not comparison.targets:
        return math.nan
    hardest = comparison.targets[0]
    # Targets are ordered from the easiest on, so the last one reached is the hardest.
    for target in comparison.targets:
        if any(math.isfinite(_seconds(comparison, group, target)) for group in groups):
            hardest = target
    return hardest


def _sentence(comparison: Comparison, group: Group, target: float) -> str:
    """Return the verdict's sentence on a group."""
    during, at_end = comparison.splits
    end = f"ended at {comparison.final(group).median:.4g}{at_end}."
    article = "an" if comparison.score_name[:1] in "aeiou" else "a"
    goal = f"{article} {comparison.score_name} of {target:g}{during}"
    seconds = _seconds(comparison, group, target)
    if math.isfinite(seconds):
        sent = size(comparison.to_target(group, "bytes", target).median)
        return (
            f"{group.label} reached {goal} after {in_seconds(seconds)} of training and {sent} "
            f"sent by all ranks, and {end}"
        )
    # Without targets, there is only the end to tell.
    if comparison.targets:
        return f"{group.label} never reached {goal}, and {end}"
    return f"{group.label} {end}"
