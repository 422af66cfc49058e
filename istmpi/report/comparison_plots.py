"""Pictures of a comparison: the score against time and bytes, and where the time went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from istmpi.report.comparison import OFF_THE_CLOCK, Comparison, in_order
from istmpi.report.figures import looking_alike, name, plain, svg
from istmpi.report.styles import GRID, INK, LINES, PAPER, PHASES, REST, Style, styles
from istmpi.units import BYTES, SECONDS, axis_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 4.8, 3.5
"""Inches of one panel, whose letters are large enough on a telephone."""
BAR = 0.35
COSTS = {"seconds": ("training time", SECONDS), "bytes": ("bytes sent by all ranks", BYTES)}
SPLIT = "Time by phase"


@dataclass(frozen=True)
class Picture:
    title: str
    svg: str


def pictures(comparison: Comparison) -> list[Picture]:
    """Draw the score against time and bytes, and where the time went; the same figures give the same text."""
    titles = {cost: f"Test {comparison.score_name} against {words}" for cost, (words, _) in COSTS.items()}
    if any(comparison.phases(group) for group in comparison.groups):
        titles["phases"] = SPLIT
    drawings = []
    for number, (cost, title) in enumerate(titles.items()):
        with looking_alike():
            from matplotlib.figure import Figure

            height = max(HEIGHT, 1.6 + BAR * len(comparison.groups)) if cost == "phases" else HEIGHT
            drawn = Figure(figsize=(WIDTH, height), layout="constrained")
            axis = drawn.subplots()
            _bars(axis, comparison) if cost == "phases" else _lines(axis, comparison, cost, title)
        drawings.append(Picture(title, svg(drawn, title, str(number))))
    return drawings


def _styles_of(comparison: Comparison) -> dict[str, Style]:
    by_method, looks = styles(group.method for group in comparison.groups), {}
    for method, style in by_method.items():
        lines = [style.line, *(line for line in LINES if line != style.line)]
        for number, group in enumerate(group for group in comparison.groups if group.method == method):
            looks[group.name] = Style(style.colour, style.marker, lines[number % len(lines)])
    return looks


def _lines(axis: Axes, comparison: Comparison, cost: str, title: str) -> None:
    looks, everywhere = _styles_of(comparison), []
    ends = [end for group in comparison.groups for end in comparison.to_end(group, cost).values]
    words, units = COSTS[cost]
    unit, factor = axis_unit(max(ends, default=0), units)
    for group in comparison.groups:
        look, runs = looks[group.name], [curve.points for curve in group.curves if curve.points]
        for number, points in enumerate(runs):
            costs = [getattr(point, cost) / factor for point in points]
            everywhere += costs
            step = max(len(points) // 8, 1)
            axis.plot(
                costs,
                [point.score for point in points],
                color=look.colour,
                linestyle=look.line,
                marker=look.marker,
                markevery=((len(points) - 1) % step, step),
                markeredgecolor=PAPER,
                markeredgewidth=0.4,
                alpha=1 if len(runs) == 1 else 0.6,
                label=None if number else name(group.label),
            )
    for target in comparison.targets:
        axis.axhline(target, color=GRID, linewidth=0.9, linestyle=":")
    if everywhere:
        axis.legend()
        if 0 < 50 * min(everywhere) < max(everywhere):
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter("{x:g}")
            axis.xaxis.set_minor_formatter("")
    axis.margins(x=0.08, y=0.1)
    axis.set(title=plain(title), ylabel=plain(f"test {comparison.score_name}"), xlabel=f"{words} ({unit})")


def _bars(axis: Axes, comparison: Comparison) -> None:
    by_group = [comparison.phases(group) for group in comparison.groups]
    phases = [phase for phase in in_order(name for phases in by_group for name in phases) if phase not in OFF_THE_CLOCK]
    totals = [sum(spent.get(phase, 0.0) for phase in phases) for spent in by_group]
    unit, factor = axis_unit(max(totals, default=0), SECONDS)
    others = (phase for phase in phases if phase not in PHASES)
    colours = PHASES | {phase: REST[number % len(REST)] for number, phase in enumerate(others)}
    places, starts = range(len(by_group)), [0.0] * len(by_group)
    for phase in phases:
        lengths = [spent.get(phase, 0.0) / factor for spent in by_group]
        look = {"color": colours[phase], "edgecolor": INK, "linewidth": 0.6}
        axis.barh(places, lengths, 0.7, starts, label=plain(phase), **look)
        starts = [start + length for start, length in zip(starts, lengths)]
    if phases:
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=min(len(phases), 4))
    axis.set_yticks(places, [name(group.label) for group in comparison.groups])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set_title(SPLIT, pad=8 + 13 * -(-len(phases) // 4))
    axis.set_xlabel(f"training time ({unit}), mean over ranks and repeats")
