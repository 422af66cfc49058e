"""A comparison as tables of plain text, for the console and HTML, and as a verdict in sentences."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from istmpi.report.comparison import (
    FIGURES,
    OFF_THE_CLOCK,
    Comparison,
    Group,
    Spread,
    differing,
    facts,
    in_order,
    text,
)
from istmpi.report.comparison import best as best_of
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
    groups = comparison.groups
    columns = tuple(group.label for group in groups)
    made = []
    for figure in FIGURES:
        title, write = TITLES[figure]
        rows, best = [], []
        for target in comparison.targets:
            spreads = [comparison.to_target(group, figure, target) for group in groups]
            ratios = [comparison.ratio(group, figure, target) for group in groups]
            cells = (_reached(*each, write) for each in zip(spreads, ratios))
            rows.append((f"{target:g}", tuple(cells)))
            best.append(best_of(spreads))
        made.append(
            Sheet(
                f"{title} to a score",
                f"{comparison.score_name} reached{comparison.splits[0]}",
                columns,
                tuple(rows),
                tuple(best),
            )
        )
    made.append(_ends(comparison, columns))
    settings_of = [facts(group.curves[0]) for group in groups]
    settings = (
        (key, tuple(text(each[key]) if key in each else "" for each in settings_of))
        for key in differing(settings_of)
    )
    more = {"Time by phase": _phases(comparison), "Settings that differ": tuple(settings)}
    return made + [Sheet(title, "", columns, rows) for title, rows in more.items() if rows]


def notes(comparison: Comparison) -> list[str]:
    lines = [
        "A score counts as reached at the first evaluation where the median of it and its two neighbours "
        "reaches it; the figures are from that evaluation. Evaluation time does not count."
    ]
    if any(len(group.curves) > 1 for group in comparison.groups):
        lines.append(
            "Figures are medians over repeats, with lowest and highest below. A run that did not reach a "
            "score counts as slower than those that did. x: ratio to the best method's figure, the median "
            "over common seeds. Runs with the same seed count as a single run, their median."
        )
    else:
        lines.append(
            "x: ratio to the best method's figure. Each method ran once; repeats would show the noise."
        )
    for group in comparison.groups:
        lines += [
            f"{group.label}, seed {curve.seed}: {curve.problem}"
            for curve in group.curves
            if curve.problem
        ]
    return lines


def _reached(spread: Spread, ratio: float | None, write: Callable[[float], str]) -> str:
    if math.isinf(spread.median):
        few = f"\n{spread.reached} of {len(spread.values)} did" * (spread.reached > 0)
        return f"not reached{few}"
    more = "" if ratio is None else f"  {times(ratio)}"
    return f"{write(spread.median)}{more}{_range(spread, write, len(spread.values))}"


def times(ratio: float) -> str:
    return (
        f"{ratio:.2f}x" if ratio < 9.95 else f"{ratio:.1f}x" if ratio < 99.5 else f"{ratio:,.0f}x"
    )


def _range(spread: Spread, write: Callable[[float], str], repeats: int) -> str:
    if repeats < 2 or spread.range is None:
        return ""
    low, high = map(write, spread.range)
    lines = [f"{low} to {high}"] * (low != high) + [f"{spread.reached} of {repeats}"] * (
        spread.reached < repeats
    )
    return f"\n{', '.join(lines)}" if lines else ""


def _ends(comparison: Comparison, columns: tuple[str, ...]) -> Sheet:
    groups = comparison.groups
    ends = [
        [(curve, curve.points[-1]) for curve in group.curves if curve.points] for group in groups
    ]
    rounds = [[point.round for _, point in its] for its in ends]
    speed = [
        Spread(tuple(point.examples / point.seconds for _, point in its if point.seconds))
        for its in ends
    ]
    sent = [Spread(tuple(curve.sent_by_a_rank for curve, _ in its if curve.ranks)) for its in ends]
    final = [comparison.final(group) for group in groups]
    alike = len({spread for each in rounds for spread in each}) == 1
    nothing: frozenset[int] = frozenset()

    def cells(spreads: Sequence[Spread], write: Callable[[float], str]) -> list[str]:
        repeats = (len(group.curves) for group in groups)
        return [
            f"{write(spread.median)}{_range(spread, write, count)}" if spread.values else ""
            for spread, count in zip(spreads, repeats)
        ]

    def ended(figure: str) -> tuple[list[str], frozenset[int]]:
        spreads = [comparison.to_end(group, figure) for group in groups]
        return cells(spreads, TITLES[figure][1]), best_of(spreads) if alike else nothing

    rows = {
        f"final {comparison.score_name}{comparison.splits[1]}": (
            cells(final, "{:.4f}".format),
            best_of(final, comparison.higher_is_better),
        ),
        "rounds": (map(_each, rounds), nothing),
        "ranks": (
            [
                _each([curve.ranks_in_turn for curve in group.curves if curve.ranks_in_turn])
                for group in groups
            ],
            nothing,
        ),
        "training time": ended("seconds"),
        "examples a second": (cells(speed, number), best_of(speed, higher=True)),
        "sent by all ranks": ended("bytes"),
        "sent by a rank": (cells(sent, size), nothing),
    }
    made = tuple((name, tuple(texts)) for name, (texts, _) in rows.items())
    return Sheet("Final figures", "", columns, made, tuple(best for _, best in rows.values()))


def _each(values: Sequence[object]) -> str:
    return " or ".join(map(str, dict.fromkeys(values)))


def _phases(comparison: Comparison) -> Rows:
    by_group = [comparison.phases(group) for group in comparison.groups]
    totals = [
        sum(spent for name, spent in phases.items() if name not in OFF_THE_CLOCK)
        for phases in by_group
    ]
    rows = []
    for name in in_order(name for phases in by_group for name in phases):
        off = name in OFF_THE_CLOCK
        cells = tuple(
            f"{in_seconds(phases[name])}{f'  {phases[name] / total:.0%}' if total and not off else ''}"
            if name in phases
            else ""
            for phases, total in zip(by_group, totals)
        )
        rows.append((f"{name} (not counted)" if off else name, cells))
    return tuple(rows)


def verdict(comparison: Comparison) -> str:
    """Return a sentence for each evaluated group, fastest first, then warnings. The target is the
    hardest reached."""
    groups = [group for group in comparison.groups if any(curve.points for curve in group.curves)]
    if not groups:
        return "The runs have no evaluation to compare yet."

    def seconds(group: Group, target: float) -> float:
        return comparison.to_target(group, "seconds", target).median

    target = comparison.targets[0] if comparison.targets else math.nan
    for harder in comparison.targets:
        if any(math.isfinite(seconds(group, harder)) for group in groups):
            target = harder
    article = "an" if comparison.score_name[:1] in "aeiou" else "a"
    during, at_end = comparison.splits
    goal, sentences = f"{article} {comparison.score_name} of {target:g}{during}", []
    for group in sorted(groups, key=lambda group: seconds(group, target)):
        reached = f"never reached {goal}, and " * bool(comparison.targets)
        if math.isfinite(spent := seconds(group, target)):
            sent = size(comparison.to_target(group, "bytes", target).median)
            reached = f"reached {goal} after {in_seconds(spent)} of training and {sent} sent by all ranks, and "
        sentences.append(
            f"{group.label} {reached}ended at {comparison.final(group).median:.4g}{at_end}."
        )
    if all(len(group.curves) == 1 for group in groups) and len(groups) > 1:
        sentences.append("Each method ran once, so noise does not show.")
    failed = [
        group.label for group in comparison.groups if any(curve.problem for curve in group.curves)
    ]
    if failed:
        sentences.append(f"Some runs of {', '.join(failed)} did not finish.")
    return " ".join(sentences)
