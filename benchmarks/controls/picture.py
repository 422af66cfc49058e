"""Pictures: accuracy against steps (`controls.plateau`), and against seconds (`time_to_accuracy.seconds`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median

from istmpi.report.styles import STYLES, Style, use_look

LINES = {"narrow": "--", "tenth": "--", "never": ":"}
"""The lines of variants, by a word of their names."""


def draw_curves(panels: Mapping[str, Mapping[str, Sequence[Mapping]]], path: Path) -> None:
    """Draw the means of records' curves by panel and method; a star is the last score of subnets side by side."""
    with use_look():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.2 * len(panels), 4), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (title, methods) in zip(axes, panels.items(), strict=True):
            for method, records in methods.items():
                points = [*zip(*(record["curve"] for record in records), strict=True)]
                steps, scores = [at[0][0] for at in points], [mean(point[1] for point in at) for at in points]
                style, filled = _look(method.lower().replace("sparseloco", "sparse-loco").replace(" ", "-"))
                line = next((line for word, line in LINES.items() if word in method), "-")
                axis.plot(steps, scores, line, color=style.colour, marker=style.marker, mfc=filled, label=method)
                if "never" in method:
                    side = mean(record["ends"]["blocks"]["validation"] for record in records)
                    axis.plot(steps[-1], side, "*", color=style.colour, markersize=11, label=f"{method}, side by side")
            axis.legend(loc="lower right")
            axis.set(title=title, xlabel="local steps of a rank")
        axes[0].set(ylabel="accuracy, P@1 (held-out training examples)")
        figure.savefig(path)


def draw_times(known: Mapping[str, Mapping[str, Sequence[Mapping]]], title: str, path: Path) -> None:
    """Draw the records by line rate, one panel each, and method: means of accuracies, medians of seconds."""
    with use_look():
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
