"""Pictures: accuracy against bytes (`benchmarks.controls.rivals`), and against seconds (`time_to_accuracy.seconds`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median

from istmpi.report.styles import STYLES, Style, looking_alike


def draw(rows: Sequence[Mapping], title: str, path: Path) -> None:
    """Draw the rows of the table, one panel for each placement of the data; a bar has the 95% interval of the mean."""
    with looking_alike():
        from matplotlib.figure import Figure

        placements = list(dict.fromkeys(row["data"] for row in rows))
        figure = Figure(figsize=(6 * len(placements), 4.6), layout="constrained")
        axes = figure.subplots(1, len(placements), sharey=True, squeeze=False)[0]
        for axis, placement in zip(axes, placements, strict=True):
            for row in rows:
                if row["data"] == placement and not row["method"].endswith("-adjusted"):
                    _point(axis, row)
            axis.legend()
            axis.set(xscale="log", xlabel="MB sent by all ranks", title=f"data {placement}")
            axis.margins(x=0.15, y=0.1)
            axis.xaxis.set_major_formatter("{x:g}")
        axes[0].set(ylabel="test accuracy")
        figure.suptitle(title)
        figure.savefig(path, dpi=110)


def draw_times(known: Mapping[str, Mapping[str, Sequence[Mapping]]], title: str, path: Path) -> None:
    """Draw the records by line rate, one panel each, and method: means of accuracies, medians of seconds."""
    with looking_alike():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6 * len(known), 5), layout="constrained")
        axes = figure.subplots(1, len(known), sharey=True, squeeze=False)[0]
        for axis, (rate, methods) in zip(axes, known.items(), strict=True):
            for method, records in methods.items():
                _line(axis, method, records)
            axis.legend()
            axis.set(xscale="log", xlabel="training time (s)", title=rate)
            axis.margins(x=0.15)
            axis.xaxis.set_major_formatter("{x:g}")
            axis.xaxis.set_minor_formatter("")
        axes[0].set(ylabel="test accuracy")
        figure.suptitle(title)
        figure.savefig(path, dpi=110)


def _line(axis, method: str, records: Sequence[Mapping]) -> None:
    points = list(zip(*(one["curve"] for one in records), strict=True))
    seconds = [median(one["seconds"] for one in at) for at in points]
    accuracies = [mean(one["accuracy"] for one in at) for at in points]
    style, filled = _look(method)
    axis.plot(
        seconds,
        accuracies,
        style.line if method in STYLES else ":",
        color=style.colour,
        marker=style.marker,
        mfc=filled,
        label=method,
    )


def _look(name: str) -> tuple[Style, str]:
    """A method's style, and what its markers are filled with: those of its variants and of controls are hollow."""
    style = next(STYLES[method] for method in sorted(STYLES, key=len, reverse=True) if method in name)
    return style, style.colour if name in STYLES else "none"


def _point(axis, row: Mapping) -> None:
    name, megabytes, accuracy = row["method"], row["MB sent"], float(row["accuracy"])
    style, filled = _look(name)
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
        linestyle="none",
        label=name,
    )
