"""Pictures of a comparison: the score against time, bytes and examples, and where the time went."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from istmpi.report.comparison import OFF_THE_CLOCK, Comparison, Group
from istmpi.report.curves import Point
from istmpi.report.figures import looking_alike, plain, require_drawable, save, svg
from istmpi.report.labels import WIDEST, Named, label, without_room
from istmpi.report.styles import GRID, INK, LINES, PAPER, PHASES, REST, Style, styles, text_on
from istmpi.report.units import Scale, bytes_scale, count_scale, seconds_scale
from istmpi.units import in_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.8, 3.5
"""Inches of one panel: what a telephone shows with letters of a size to read."""


@dataclass(frozen=True)
class Panel:
    """What the score is drawn against."""

    title: str
    cost: Callable[[Point], float]
    scale: Callable[[float], Scale]
    label: str
    """With the unit's place."""


PANELS = (
    Panel("training time", lambda point: point.seconds, seconds_scale, "training time ({})"),
    Panel("bytes sent", lambda point: point.bytes, bytes_scale, "{} sent by all ranks"),
    Panel("examples", lambda point: point.examples, count_scale, "{} consumed by all ranks"),
)


@dataclass(frozen=True)
class Picture:
    """One panel as an <svg> element."""

    title: str
    svg: str


def draw(comparisons: Mapping[str, Comparison], title: str, path: Path) -> None:
    """Draw comparisons, by their data, into a file: a row for each.

    ConfigError for another format, OutputError where it cannot be written.
    """
    require_drawable(path)
    said = " ".join(described(one, panel) for one in comparisons.values() for panel in PANELS)
    save(figure(comparisons, title), path, title, said)


def pictures(comparison: Comparison, salt: str = "") -> list[Picture]:
    """Each panel by itself, for a page; the same figures give the same text."""
    made = []
    for number, panel in enumerate(PANELS):
        drawn, title = _panel_alone(comparison, panel), _title(comparison, panel)
        made.append(Picture(title, svg(drawn, title, described(comparison, panel), f"{salt}{number}")))
    if any(comparison.phases(group) for group in comparison.groups):
        title = "Where the time went"
        made.append(Picture(title, svg(_bars_alone(comparison), title, _split_described(comparison), f"{salt}bars")))
    return made


def figure(comparisons: Mapping[str, Comparison], title: str) -> "Figure":
    """For each data set three panels with a line for every run, in its method's style, and a bar for every method."""
    with looking_alike():
        from matplotlib.figure import Figure

        heights = [HEIGHT + 1.2 + 0.35 * len(one.groups) for one in comparisons.values()]
        drawn = Figure(figsize=(3 * 4.2, sum(heights) + 0.4), layout="constrained")
        drawn.suptitle(plain(title))
        rows = drawn.subfigures(len(comparisons), 1, height_ratios=heights, squeeze=False)[:, 0]
        labelled, axes_of_bars = [], []
        for row, (data, comparison), height in zip(rows, comparisons.items(), heights):
            if len(comparisons) > 1:
                row.suptitle(plain(data))
            axes = row.subplot_mosaic("abc;ddd", height_ratios=[HEIGHT, height - HEIGHT])
            labelled += [(axes[key], _lines(axes[key], comparison, panel)) for key, panel in zip("abc", PANELS)]
            _bars(axes["d"], comparison)
            axes_of_bars.append(axes["d"])
        label(drawn, labelled)
        without_room(axes_of_bars)
    return drawn


def described(comparison: Comparison, panel: Panel) -> str:
    """What a panel shows, in words, for those who do not see it."""
    ends = []
    for group in comparison.groups:
        last = [curve.points[-1] for curve in group.curves if curve.points]
        if last:
            scale = panel.scale(max(map(panel.cost, last)))
            ends.append(
                f"{group.label} ends at {comparison.final(group).median:.4g} with "
                f"{' to '.join(dict.fromkeys(f'{cost(last) / scale.factor:.3g}' for cost in _extremes(panel)))} "
                f"{scale.unit}"
            )
    return f"{_title(comparison, panel)}: {'; '.join(ends) or 'no run was evaluated'}."


def _extremes(panel: Panel) -> list[Callable[[list[Point]], float]]:
    return [lambda points: min(map(panel.cost, points)), lambda points: max(map(panel.cost, points))]


def _split_described(comparison: Comparison) -> str:
    """Each method's phases, in words."""
    found = []
    for group in comparison.groups:
        spent = {name: seconds for name, seconds in comparison.phases(group).items() if name not in OFF_THE_CLOCK}
        parts = (f"{name} {in_seconds(seconds)}" for name, seconds in sorted(spent.items(), key=lambda item: -item[1]))
        found.append(f"{group.label}: {', '.join(parts) or 'not told'}")
    return "; ".join(found) + "."


def _title(comparison: Comparison, panel: Panel) -> str:
    return f"Test {comparison.score_name} against {panel.title}"


def _panel_alone(comparison: Comparison, panel: Panel) -> "Figure":
    with looking_alike():
        from matplotlib.figure import Figure

        drawn = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axis = drawn.subplots()
        label(drawn, [(axis, _lines(axis, comparison, panel))])
    return drawn


def _bars_alone(comparison: Comparison) -> "Figure":
    with looking_alike():
        from matplotlib.figure import Figure

        drawn = Figure(figsize=(WIDTH, max(HEIGHT, 1.6 + 0.35 * len(comparison.groups))), layout="constrained")
        axis = drawn.subplots()
        _bars(axis, comparison)
        drawn.draw_without_rendering()
        without_room([axis])
    return drawn


def styles_of(comparison: Comparison) -> dict[str, Style]:
    """Every group's style: its method's colour and marker, and a line of its own where a method has several groups."""
    by_method = styles(group.method for group in comparison.groups)
    found, seen = {}, dict.fromkeys(by_method, 0)
    for group in comparison.groups:
        style, number = by_method[group.method], seen[group.method]
        lines = [style.line, *(line for line in LINES if line != style.line)]
        found[group.name] = Style(style.colour, style.marker, lines[number % len(lines)])
        seen[group.method] += 1
    return found


def _lines(axis: "Axes", comparison: Comparison, panel: Panel) -> list[Named]:
    """Draw every run; what is returned is to be labelled once the picture has its layout."""
    looks = styles_of(comparison)
    there = [panel.cost(point) for group in comparison.groups for curve in group.curves for point in curve.points]
    scale = panel.scale(max(there, default=0))
    named = []
    for group, curves in _drawn(comparison):
        look, text = looks[group.name], group.label
        for points in curves:
            costs, scores = [panel.cost(point) / scale.factor for point in points], [point.score for point in points]
            axis.plot(
                costs,
                scores,
                color=look.colour,
                linestyle=look.line,
                marker=look.marker,
                markevery=_marked(len(points)),
                markeredgecolor=PAPER,
                markeredgewidth=0.4,
                alpha=1 if len(curves) == 1 else 0.6,
            )
            named.append(Named(costs, scores, look.colour, text))
            text = ""
    for target in comparison.targets:
        axis.axhline(target, color=GRID, linewidth=0.9, linestyle=":")
    if there and _wide(there):
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
    axis.margins(x=0.08, y=0.1)
    axis.set(title=plain(_title(comparison, panel)), ylabel=plain(f"test {comparison.score_name}"))
    axis.set_xlabel(panel.label.format(scale.unit))
    return named


def _drawn(comparison: Comparison) -> Iterator[tuple[Group, list[Sequence[Point]]]]:
    for group in comparison.groups:
        curves = [curve.points for curve in group.curves if curve.points]
        if curves:
            yield group, curves


def _marked(count: int) -> list[int]:
    return [place for place in range(count) if (count - 1 - place) % max(count // 8, 1) == 0]


def _wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > 50 * min(values)


def _bars(axis: "Axes", comparison: Comparison) -> None:
    """Seconds by phase, side by side; a phase's name stands in its bar where there is room, all of them above."""
    by_group = [comparison.phases(group) for group in comparison.groups]
    found = dict.fromkeys(name for phases in by_group for name in phases if name not in OFF_THE_CLOCK)
    found = sorted(found, key=lambda name: [*PHASES].index(name) if name in PHASES else len(PHASES))
    names = [textwrap.fill(plain(group.label), WIDEST) for group in comparison.groups]
    totals = [sum(phases.get(phase, 0.0) for phase in found) for phases in by_group]
    scale = seconds_scale(max(totals, default=0))
    starts = [0.0] * len(names)
    places = range(len(names))
    rest = 0
    for phase in found:
        lengths = [phases.get(phase, 0.0) / scale.factor for phases in by_group]
        colour = PHASES.get(phase)
        if colour is None:
            colour, rest = REST[rest % len(REST)], rest + 1
        bars = axis.barh(places, lengths, 0.7, starts, color=colour, label=plain(phase), edgecolor=INK, linewidth=0.6)
        axis.bar_label(bars, [plain(phase)] * len(names), label_type="center", fontsize=8, color=text_on(colour))
        starts = [start + length for start, length in zip(starts, lengths)]
    axis.set_yticks(places, names)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.12)
    for place, total in zip(places, totals):
        if total and isfinite(total):
            said = f"{total / scale.factor:.3g} {scale.unit}"
            axis.annotate(said, (total / scale.factor, place), (4, 0), textcoords="offset points", va="center")
    axis.set_title("Where the time went", pad=8 + 13 * -(-len(found) // 4))
    axis.set_xlabel(
        f"training time ({scale.unit}), mean over ranks and repeats;\nevaluating and saving are not on the clock"
    )
    if found:
        axis.legend(
            loc="lower right", bbox_to_anchor=(1, 1), ncols=min(len(found), 4), borderpad=0.2, handlelength=1.2,
            columnspacing=1,
        )  # fmt: skip
