"""A picture of early exits: accuracy against the share of the examples that leave early."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from istmpi.exits import ExitPoint, nearly_free
from istmpi.report.figures import looking_alike, plain, require_drawable, save
from istmpi.report.styles import BLUE, GRID, VERMILLION, shades, text_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(curve: Sequence[ExitPoint], exits: Sequence[float], title: str, path: Path) -> None:
    """Draw a curve into a file; ConfigError for another format, OutputError where it cannot be written."""
    require_drawable(path)
    best = nearly_free(curve)
    said = (
        f"At a threshold of {best.threshold:.2f} {best.early:.0%} of the examples leave early, with an accuracy of "
        f"{best.accuracy:.4g}; all at one exit: {', '.join(f'{one:.4g}' for one in exits)}."
    )
    save(figure(curve, exits, title), path, title, said)


def figure(curve: Sequence[ExitPoint], exits: Sequence[float], title: str) -> "Figure":
    """Two panels: accuracy against the share that leaves early, and by threshold who leaves where.

    ``exits``: the accuracy of every exit where all examples leave there.
    """
    with looking_alike():
        from matplotlib.figure import Figure

        drawn = Figure(figsize=(10, 4.2), layout="constrained")
        left, right = drawn.subplots(1, 2)
        best = nearly_free(curve)
        left.plot([point.early for point in curve], [point.accuracy for point in curve], ".-", color=BLUE)
        left.plot(best.early, best.accuracy, "D", color=VERMILLION, markersize=7)
        far = best.early > 0.3
        left.annotate(
            f"threshold {best.threshold:.2f}:\nless than 0.005 lost",
            (best.early, best.accuracy),
            (-8 if far else 8, -8),
            textcoords="offset points",
            ha="right" if far else "left",
            va="top",
        )
        for number, accuracy in enumerate(exits, 1):
            left.axhline(accuracy, color=GRID, linewidth=0.9, linestyle=":")
            left.annotate(f"exit {number} alone", (1, accuracy), ha="right", va="bottom", fontsize=8)
        left.set(title="Accuracy against leaving early", xlabel="share of the examples that leave early")
        left.set(ylabel="accuracy", xlim=(-0.02, 1.02))
        thresholds = [point.threshold for point in curve]
        shares = list(zip(*(point.shares for point in curve)))
        colours = shades(len(exits))
        right.stackplot(thresholds, *shares, colors=colours)
        right.axvline(best.threshold, color=VERMILLION, linewidth=1.2)
        _name_areas(right, thresholds, shares, colours)
        right.set(title="Who leaves where", xlabel="threshold of the normalised entropy")
        right.set(ylabel="share that leaves at each exit", xlim=(0, 1), ylim=(0, 1))
        drawn.suptitle(plain(title))
    return drawn


def _name_areas(axis: "Axes", thresholds: Sequence[float], shares: Sequence[Sequence[float]], colours) -> None:
    """Write every exit's name where its area is highest."""
    below = [0.0] * len(thresholds)
    for number, (share, colour) in enumerate(zip(shares, colours), 1):
        inner = range(len(thresholds) // 10, max(len(thresholds) * 9 // 10, 1))
        widest = max(inner, key=lambda place: share[place])
        if share[widest] > 0.06:
            place = thresholds[widest], below[widest] + share[widest] / 2
            axis.text(*place, f"exit {number}", ha="center", va="center", color=text_on(colour))
        below = [one + more for one, more in zip(below, share)]
