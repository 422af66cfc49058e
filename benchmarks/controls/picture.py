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


def draw_bytes(panels: Mapping[str, Sequence[Mapping[str, str]]], path: Path) -> None:
    """Draw the scores of a report's rows against what all ranks sent, a panel each; bars are 95% intervals."""
    with use_look():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6 * len(panels), 4.5), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (title, rows) in zip(axes, panels.items(), strict=True):
            for row in rows:
                # Variants of joint have nearly the bytes of the method itself, whose name stands on the other side.
                is_variant = row["method"].startswith("joint") and row["method"].count(",") > 1
                side = -8 if is_variant else 8
                aligned = "right" if is_variant else "left"
                style, filled = _look(row["method"].lower().replace("sparseloco", "sparse-loco").replace(" ", "-"))
                # Rows of a single seed have no interval.
                error = float(row["+-"] or 0)
                marker = "*" if "side by side" in row["method"] else style.marker
                sent, score = float(row["MB sent"]), float(row["score"])
                axis.errorbar(sent, score, error, fmt=marker, color=style.colour, mfc=filled, markersize=8, capsize=3)
                axis.annotate(row["method"], (sent, score), (side, 3), textcoords="offset points", ha=aligned, size=8)
            axis.set(title=title, xlabel="MB that all ranks send in rounds", xscale="log")
            axis.margins(x=0.4, y=0.1)
        axes[0].set(ylabel="accuracy, P@1 (test)")
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
