"""Pictures of a comparison: the score against time, bytes and examples, and where the time went."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from istmpi.report.comparison import OFF_THE_CLOCK, Comparison, in_order
from istmpi.report.figures import looking_alike, name, plain, require_drawable, save, svg
from istmpi.report.styles import GRID, INK, LINES, PAPER, PHASES, REST, Style, styles
from istmpi.report.units import BYTES, EXAMPLES, SECONDS, axis_unit
from istmpi.units import in_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.8, 3.5
"""Inches of one panel, whose letters are large enough on a telephone."""
BAR = 0.35
"""Inches of a bar."""
SPLIT = "Where the time went"


@dataclass(frozen=True)
class Panel:
    """A cost that the score is drawn against."""

    title: str
    cost: str
    """Its name in a `Point`."""
    units: Mapping[str, float]
    label: str
    """The axis's label, with a place for the unit."""


PANELS = (
    Panel("training time", "seconds", SECONDS, "training time ({})"),
    Panel("bytes sent", "bytes", BYTES, "{} sent by all ranks"),
    Panel("examples", "examples", EXAMPLES, "{} consumed by all ranks"),
)


@dataclass(frozen=True)
class Picture:
    """A panel as an <svg> element."""

    title: str
    svg: str


def draw(comparisons: Mapping[str, Comparison], title: str, path: Path) -> None:
    """Draw comparisons, by their data, into a file: a row for each.

    ConfigError for another format, OutputError where it cannot be written.
    """
    require_drawable(path)
    words = " ".join(_described(each, panel) for each in comparisons.values() for panel in PANELS)
    save(_figure(comparisons, title), path, title, words)


def pictures(comparison: Comparison, salt: str = "") -> list[Picture]:
    """Each panel by itself, for a page; the same figures give the same text."""
    made = [
        (
            _title(comparison, panel),
            _described(comparison, panel),
            HEIGHT,
            lambda axis, panel=panel: _lines(axis, comparison, panel),
        )
        for panel in PANELS
    ]
    if any(comparison.phases(group) for group in comparison.groups):
        height = max(HEIGHT, 1.6 + BAR * len(comparison.groups))
        made.append((SPLIT, _split_described(comparison), height, lambda axis: _bars(axis, comparison)))
    drawings = []
    for number, (title, words, height, fill) in enumerate(made):
        with looking_alike():
            from matplotlib.figure import Figure

            drawn = Figure(figsize=(WIDTH, height), layout="constrained")
            fill(drawn.subplots())
        drawings.append(Picture(title, svg(drawn, title, words, f"{salt}{number}")))
    return drawings


def _figure(comparisons: Mapping[str, Comparison], title: str) -> "Figure":
    """A row for each data set: three panels with a line for every run, and a bar for every method."""
    with looking_alike():
        from matplotlib.figure import Figure

        heights = [HEIGHT + 1.2 + BAR * len(each.groups) for each in comparisons.values()]
        drawn = Figure(figsize=(3 * 4.2, sum(heights) + 0.4), layout="constrained")
        drawn.suptitle(plain(title))
        rows = drawn.subfigures(len(comparisons), 1, height_ratios=heights, squeeze=False)[:, 0]
        for row, (data, comparison), height in zip(rows, comparisons.items(), heights):
            if len(comparisons) > 1:
                row.suptitle(plain(data))
            axes = row.subplot_mosaic("abc;ddd", height_ratios=[HEIGHT, height - HEIGHT])
            for key, panel in zip("abc", PANELS):
                _lines(axes[key], comparison, panel)
            _bars(axes["d"], comparison)
    return drawn


def _described(comparison: Comparison, panel: Panel) -> str:
    """A panel in words, for those who do not see it."""
    ends = []
    for group in comparison.groups:
        costs = [getattr(curve.points[-1], panel.cost) for curve in group.curves if curve.points]
        if costs:
            unit, factor = axis_unit(max(costs), panel.units)
            reach = " to ".join(dict.fromkeys(f"{cost / factor:.3g}" for cost in (min(costs), max(costs))))
            ends.append(f"{group.label} ends at {comparison.final(group).median:.4g} with {reach} {unit}")
    return f"{_title(comparison, panel)}: {'; '.join(ends) or 'no run was evaluated'}."


def _split_described(comparison: Comparison) -> str:
    """Each method's phases in words."""
    texts = []
    for group in comparison.groups:
        spent = {name: seconds for name, seconds in comparison.phases(group).items() if name not in OFF_THE_CLOCK}
        parts = (f"{name} {in_seconds(spent[name])}" for name in sorted(spent, key=spent.get, reverse=True))
        texts.append(f"{group.label}: {', '.join(parts) or 'not told'}")
    return "; ".join(texts) + "."


def _title(comparison: Comparison, panel: Panel) -> str:
    return f"Test {comparison.score_name} against {panel.title}"


def _styles_of(comparison: Comparison) -> dict[str, Style]:
    """Every group's style: its method's colour and marker, and a line of its own where a method has several groups."""
    by_method, looks = styles(group.method for group in comparison.groups), {}
    for method, style in by_method.items():
        lines = [style.line, *(line for line in LINES if line != style.line)]
        for number, group in enumerate(group for group in comparison.groups if group.method == method):
            looks[group.name] = Style(style.colour, style.marker, lines[number % len(lines)])
    return looks


def _lines(axis: "Axes", comparison: Comparison, panel: Panel) -> None:
    """Draw every run."""
    looks, everywhere = _styles_of(comparison), []
    ends = [curve.points[-1] for group in comparison.groups for curve in group.curves if curve.points]
    unit, factor = axis_unit(max((getattr(end, panel.cost) for end in ends), default=0), panel.units)
    for group in comparison.groups:
        look, runs = looks[group.name], [curve.points for curve in group.curves if curve.points]
        for number, points in enumerate(runs):
            costs, scores = [getattr(point, panel.cost) / factor for point in points], [point.score for point in points]
            everywhere += costs
            step = max(len(points) // 8, 1)
            axis.plot(
                costs,
                scores,
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
    axis.set(title=plain(_title(comparison, panel)), ylabel=plain(f"test {comparison.score_name}"))
    axis.set_xlabel(panel.label.format(unit))


def _bars(axis: "Axes", comparison: Comparison) -> None:
    """Draw a bar for each method, of its phases' seconds side by side."""
    by_group = [comparison.phases(group) for group in comparison.groups]
    phases = [phase for phase in in_order(name for phases in by_group for name in phases) if phase not in OFF_THE_CLOCK]
    totals = [sum(spent.get(phase, 0.0) for phase in phases) for spent in by_group]
    unit, factor = axis_unit(max(totals, default=0), SECONDS)
    places, starts = range(len(by_group)), [0.0] * len(by_group)
    others = [phase for phase in phases if phase not in PHASES]
    colours = PHASES | {phase: REST[number % len(REST)] for number, phase in enumerate(others)}
    for phase in phases:
        lengths = [spent.get(phase, 0.0) / factor for spent in by_group]
        bars = axis.barh(
            places, lengths, 0.7, starts, color=colours[phase], label=plain(phase), edgecolor=INK, linewidth=0.6
        )
        starts = [start + length for start, length in zip(starts, lengths)]
    if phases:
        axis.bar_label(bars, [f"{total / factor:.3g} {unit}" if total else "" for total in totals], padding=4)
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=min(len(phases), 4))
    axis.set_yticks(places, [name(group.label) for group in comparison.groups])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.12)
    axis.set_title(SPLIT, pad=8 + 13 * -(-len(phases) // 4))
    axis.set_xlabel(f"training time ({unit}), mean over ranks and repeats;\nevaluating and saving are not on the clock")
