"""The picture of `benchmarks/controls_rivals.py`: accuracy against bytes, one panel for each placement of the data."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from istmpi.report.figures import looking_alike
from istmpi.report.labels import Named, label
from istmpi.report.styles import STYLES


def draw(rows: Sequence[Mapping], title: str, path: Path) -> None:
    """Draw the rows of the table; a bar has the 95% interval of the mean over seeds."""
    with looking_alike():
        from matplotlib.figure import Figure

        placements = list(dict.fromkeys(row["data"] for row in rows))
        figure = Figure(figsize=(6 * len(placements), 4.6), layout="constrained")
        axes = figure.subplots(1, len(placements), sharey=True, squeeze=False)[0]
        panels = []
        for axis, placement in zip(axes, placements, strict=True):
            shown = [row for row in rows if row["data"] == placement and not row["method"].endswith("-adjusted")]
            panels.append((axis, [_point(axis, row) for row in shown]))
            axis.set(xscale="log", xlabel="MB sent by all ranks", title=f"data {placement}")
            axis.margins(x=0.15, y=0.1)
            axis.xaxis.set_major_formatter("{x:g}")
        axes[0].set(ylabel="test accuracy")
        figure.suptitle(title)
        label(figure, panels)
        figure.savefig(path, dpi=110)


def _point(axis, row: Mapping) -> Named:
    name, megabytes, accuracy = row["method"], row["MB sent"], float(row["accuracy"])
    style = next(STYLES[method] for method in sorted(STYLES, key=len, reverse=True) if method in name)
    filled = style.colour if name in STYLES else "none"
    interval = float(row["+-"] or 0)
    axis.errorbar(
        megabytes,
        accuracy,
        interval,
        color=style.colour,
        marker=style.marker,
        markersize=7,
        markerfacecolor=filled,
        elinewidth=0.8,
        capsize=2,
    )
    return Named([megabytes], [accuracy], style.colour, name)
