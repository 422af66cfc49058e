"""Draws a run from the record in its folder, comparisons, and predicted costs. ImportError without
matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from istmpi.config import Run
from istmpi.foreign import Fields
from istmpi.methods import spec_of
from istmpi.record import SETTINGS, SUMMARY, RunFolder
from istmpi.report.comparison import OFF_THE_CLOCK, Comparison, in_order
from istmpi.report.styles import (
    BLUE,
    GRID,
    INK,
    LINES,
    PAPER,
    PHASES,
    REST,
    Style,
    looking_alike,
    name,
    plain,
    require_drawable,
    save,
    styles,
    svg,
)
from istmpi.units import BYTES, SECONDS, axis_unit, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from istmpi.cost.survey import Row

PICTURE = "progress.png"


def draw(folder: Path) -> Path:
    """Draw ``progress.png`` into a run's folder: score and loss, and the learning rate if it
    changes.

    Raises DataError for a bad record, OutputError if the file cannot be written.
    """
    record = RunFolder(folder)
    summary, lines = record.summary(), record.lines()
    title, method = folder.name, ""
    if (folder / SETTINGS).is_file():
        run = Run.load(str(folder / SETTINGS))
        method = run.method.name
        title = f"{run.name}: {method}"
    title += f" on {counted(summary.whole('ranks', 1), 'rank')}"
    with looking_alike():
        _progress(lines, summary.text("score_name"), title, method, folder / PICTURE)
    return folder / PICTURE


def missing(folder: Path) -> bool:
    picture = folder / PICTURE
    return (
        not picture.exists() or picture.stat().st_mtime_ns < (folder / SUMMARY).stat().st_mtime_ns
    )


def _progress(
    lines: Sequence[Fields], score_name: str, title: str, method: str, path: Path
) -> None:
    from matplotlib.figure import Figure

    split = "validation" if any("validation_score" in line for line in lines) else "test"
    keys = (
        ("validation_score", "validation_loss") if split == "validation" else ("score", "test_loss")
    )
    scored = [line for line in lines if keys[0] in line]
    scores, errors = (
        [line.figure(name) if name in line else nan for line in scored] for name in keys
    )
    rates = [line.figure("learning_rate", 0) for line in lines if "learning_rate" in line]
    changing = (
        len(rates) == len(lines) and len(set(rates)) > 1
    )  # earlier versions of istmpi recorded none
    heights = [2.4, 2.4, 1.2][: 2 + changing]
    figure = Figure(figsize=(5.6, sum(heights) + 1), layout="constrained")
    axes = figure.subplots(len(heights), 1, height_ratios=heights, sharex=True)
    deals = bool(method) and spec_of(method).deals
    colour = styles([method])[method].colour if method else BLUE
    unit, factor = axis_unit(lines[-1].figure("seconds") if lines else 0, SECONDS)
    everywhere, where = (
        [line.figure("seconds") / factor for line in some] for some in (lines, scored)
    )
    axes[0].plot(where, scores, "o-", color=colour)
    label = "training" + ", subnets" * deals
    axes[1].plot(everywhere, [line.figure("loss") for line in lines], "--", color=GRID, label=label)
    axes[1].plot(where, errors, "o-", color=colour, label=f"{split}, whole network")
    axes[1].legend()
    for axis in axes[2:]:
        axis.step([0, *everywhere], [rates[0], *rates], color=INK, where="pre")
        axis.set_ylim(bottom=0)
    for axis, text in zip(axes, (plain(f"{split} {score_name}"), "loss", "learning rate")):
        axis.set_ylabel(text)
        axis.tick_params(labelbottom=True)
    axes[-1].set_xlabel(f"training time ({unit}), {counted(len(lines), 'round')}")
    figure.suptitle(plain(title))
    save(figure, path, title, follow=False)


# ---- a comparison

WIDTH, HEIGHT = 4.8, 3.5
"""The size of a panel in inches. Its letters are readable on a phone."""
BAR = 0.35
COSTS = {"seconds": ("training time", SECONDS), "bytes": ("bytes sent by all ranks", BYTES)}
SPLIT = "Time by phase"


def pictures(comparison: Comparison) -> dict[str, str]:
    """Return reproducible <svg> elements by title: the score against time and bytes, and the time
    by phase."""
    scored = _scored(comparison)
    titles = {
        cost: f"{scored[0].upper()}{scored[1:]} against {words}"
        for cost, (words, _) in COSTS.items()
    }
    if any(comparison.phases(group) for group in comparison.groups):
        titles["phases"] = SPLIT
    drawings = {}
    for number, (cost, title) in enumerate(titles.items()):
        with looking_alike():
            from matplotlib.figure import Figure

            height = max(HEIGHT, 1.6 + BAR * len(comparison.groups)) if cost == "phases" else HEIGHT
            drawn = Figure(figsize=(WIDTH, height), layout="constrained")
            axis = drawn.subplots()
            _bars(axis, comparison) if cost == "phases" else _lines(axis, comparison, cost, title)
        drawings[title] = svg(drawn, title, str(number))
    return drawings


def _styles_of(comparison: Comparison) -> dict[str, Style]:
    by_method, looks = styles(group.method for group in comparison.groups), {}
    for method, style in by_method.items():
        lines = [style.line, *(line for line in LINES if line != style.line)]
        for number, group in enumerate(
            group for group in comparison.groups if group.method == method
        ):
            looks[group.name] = Style(style.colour, style.marker, lines[number % len(lines)])
    return looks


def _scored(comparison: Comparison) -> str:
    return f"{'validation' if comparison.splits[0] else 'test'} {comparison.score_name}"


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
    axis.set(title=plain(title), ylabel=plain(_scored(comparison)), xlabel=f"{words} ({unit})")


def _bars(axis: Axes, comparison: Comparison) -> None:
    by_group = [comparison.phases(group) for group in comparison.groups]
    phases = [
        phase
        for phase in in_order(name for phases in by_group for name in phases)
        if phase not in OFF_THE_CLOCK
    ]
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


# ---- costs

SPEED_UP = "Speed-up over one process"
PANELS: list[tuple[str, str, Callable[[Row], float]]] = [
    (
        "Traffic",
        "Mfloat received per gradient step, all ranks",
        lambda row: row["received_floats_per_step"] / 1e6,
    ),
    ("Computation", "GFLOP per gradient step, all ranks", lambda row: row["flops_per_step"] / 1e9),
    ("Time of an epoch", "seconds", lambda row: row["seconds_per_epoch"]),
    (SPEED_UP, "ratio of examples a second", lambda row: row["speed_up"]),
    ("Memory of a rank", "MB", lambda row: row["memory_bytes"] / 1e6),
]


def draw_costs(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw traffic, computation, time, speed-up and memory of methods by number of ranks into a
    file.

    Raises ConfigError for an unknown ending of ``path``, OutputError if it cannot be written.
    """
    require_drawable(path)
    save(figure_of_costs(rows, title), path, title)


def figure_of_costs(rows: Sequence[Row], title: str) -> Figure:
    with looking_alike():
        from matplotlib.figure import Figure

        drawn = Figure(figsize=(8, 11), layout="constrained")
        counts, looks = (
            sorted({row["ranks"] for row in rows}),
            styles(row["method"] for row in rows),
        )
        *axes, spare = drawn.subplots(3, 2).flat
        spare.remove()
        for axis, (name, unit, value) in zip(axes, PANELS, strict=True):
            for method, look in looks.items():
                points = [
                    (row["ranks"], value(row) or nan) for row in rows if row["method"] == method
                ]
                # The logarithmic axis has no place for zero.
                axis.plot(
                    *zip(*points),
                    color=look.colour,
                    marker=look.marker,
                    linestyle=look.line,
                    markersize=5,
                    fillstyle="none",
                    label=method,
                )
            if name == SPEED_UP:
                axis.plot(counts, counts, color=GRID, linewidth=0.8, label="linear speed-up")
            axis.set(title=name, xlabel="ranks (machines)", ylabel=unit, xscale="log", yscale="log")
            axis.set_xticks(counts if len(counts) <= 8 else counts[::2], minor=False)
            axis.xaxis.set_major_formatter("{x:,.0f}")
            axis.yaxis.set_major_formatter(
                lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"
            )
            axis.minorticks_off()
            axis.legend()
        drawn.suptitle(fill(plain(title), 80))
    return drawn
