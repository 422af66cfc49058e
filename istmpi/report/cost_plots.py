"""Draws predicted costs by number of ranks. Raises ImportError without matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose, isnan, nan
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from istmpi.report.styles import GRID, Style, plain, require_drawable, save, styles, use_look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from istmpi.cluster.survey import Row


@dataclass(frozen=True)
class _Panel:
    title: str
    unit: str
    read: Callable[[Row], float]


SPEED_UP = "Speed-up over one process"
LINEAR = "linear speed-up"
PANELS = (
    _Panel(
        "Traffic",
        "Mfloat received per gradient step, all ranks",
        lambda row: row["received_floats_per_step"] / 1e6,
    ),
    _Panel(
        "Computation",
        "GFLOP per gradient step, all ranks",
        lambda row: row["flops_per_step"] / 1e9,
    ),
    _Panel("Time of an epoch", "seconds", lambda row: row["seconds_per_epoch"]),
    _Panel(SPEED_UP, "ratio of examples a second", lambda row: row["speed_up"]),
    _Panel("Memory of a rank", "MB", lambda row: row["memory_bytes"] / 1e6),
)
ALIKE = 0.01
"""Curves whose values differ by at most this fraction cannot be told apart in a picture."""
FEW_DECADES = 30
"""Values below this ratio have more numbers on their axis than those of powers of ten."""


def draw_costs(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw traffic, computation, time, speed-up and memory by number of ranks into a file.

    Raises ConfigError for an unknown ending of ``path``, OutputError if it cannot be written.
    """
    require_drawable(path)
    save(make_cost_figure(rows, title), path, title)


def make_cost_figure(rows: Sequence[Row], title: str) -> Figure:
    with use_look():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 11), layout="constrained")
        chosen = styles(row["method"] for row in rows)
        counts = sorted({row["ranks"] for row in rows})
        *axes, spare = figure.subplots(3, 2).flat
        for axis, panel in zip(axes, PANELS, strict=True):
            _draw_panel(axis, panel, rows, counts, chosen)
        spare.axis("off")
        handles = {}
        for axis in axes:
            handles.update({line.get_label(): line for line in axis.get_lines()})
        # The sixth place of the grid has no panel.
        spare.legend(handles.values(), handles.keys(), loc="center left", title="methods")
        figure.suptitle(fill(plain(title), 80))
    return figure


def _draw_panel(
    axis: Axes,
    panel: _Panel,
    rows: Sequence[Row],
    counts: Sequence[int],
    chosen: Mapping[str, Style],
) -> None:
    """Draw a line for each method, and name lines that lie on each other."""
    curves = {}
    for method, style in chosen.items():
        read = {row["ranks"]: panel.read(row) for row in rows if row["method"] == method}
        # The logarithmic axis has no place for zero.
        curves[method] = {ranks: value or nan for ranks, value in read.items()}
        axis.plot(
            [*curves[method]],
            [*curves[method].values()],
            color=style.colour,
            marker=style.marker,
            linestyle=style.line,
            markersize=5,
            fillstyle="none",
            label=method,
        )
    values = [value for curve in curves.values() for value in curve.values() if not isnan(value)]
    if panel.title == SPEED_UP:
        values += counts
        axis.plot(counts, counts, color=GRID, linewidth=0.8, label=LINEAR)
    axis.set(xlabel="ranks (machines)", ylabel=panel.unit, xscale="log", yscale="log")
    note = _describe_coinciding(curves)
    # The note is between the title and the panel.
    axis.set_title(panel.title, pad=6 + 10 * len(note.splitlines()))
    axis.text(0.5, 1.02, note, transform=axis.transAxes, ha="center", va="bottom", fontsize=7.5)
    _number_axes(axis, counts, values)


def _describe_coinciding(curves: Mapping[str, Mapping[int, float]]) -> str:
    lines = []
    for names in list_coinciding(curves):
        lines.append(fill(plain(f"one line: {', '.join(names)}"), 60))
    return "\n".join(lines)


def list_coinciding(curves: Mapping[str, Mapping[int, float]]) -> list[list[str]]:
    """Return the names of curves that lie on each other, in groups of two and more.

    ``curves``: values by number of ranks, by name; NaN is no value.
    """
    groups: list[list[str]] = []
    for name, values in curves.items():
        for group in groups:
            if _is_alike(curves[group[0]], values):
                group.append(name)
                break
        else:
            groups.append([name])
    return [group for group in groups if len(group) > 1]


def _is_alike(first: Mapping[int, float], second: Mapping[int, float]) -> bool:
    """Return True if two curves have the same values at all numbers of ranks that both have."""
    common = [ranks for ranks in first if ranks in second]
    pairs = [(first[ranks], second[ranks]) for ranks in common]
    shown = [pair for pair in pairs if not (isnan(pair[0]) and isnan(pair[1]))]
    return bool(shown) and all(isclose(*pair, rel_tol=ALIKE) for pair in shown)


def _number_axes(axis: Axes, counts: Sequence[int], values: Sequence[float]) -> None:
    """Write numbers at both axes, however little the ``values`` of the curves differ."""
    from matplotlib.ticker import LogLocator

    ticks = counts
    if len(counts) > 8:
        # Numbers of ranks are powers of two as a rule; more than eight labels would overlap.
        ticks = counts[::2]
    axis.set_xticks(ticks, minor=False)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    low = min(values, default=1.0)
    high = max(values, default=1.0)
    if high < 2 * low:
        # Nearly equal values would have an axis without a power of ten, or noise in full height.
        low /= 2
        high *= 2
        axis.set_ylim(low, high)
    if high < FEW_DECADES * low:
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axis.minorticks_off()
