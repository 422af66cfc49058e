"""A picture of early exits: accuracy against the share of the examples that leave early."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from istmpi.exits import ExitPoint, nearly_free
from istmpi.report.figures import looking_alike, plain, require_drawable, save
from istmpi.report.styles import BLUE, GRID, VERMILLION

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(curve: Sequence[ExitPoint], exits: Sequence[float], title: str, path: Path) -> None:
    """Draw a curve into a file; ConfigError for another format, OutputError where it cannot be written."""
    require_drawable(path)
    best = nearly_free(curve)
    words = (
        f"At a threshold of {best.threshold:.2f} {best.early:.0%} of the examples leave early, with an accuracy of "
        f"{best.accuracy:.4g}; all at one exit: {', '.join(f'{accuracy:.4g}' for accuracy in exits)}."
    )
    save(figure(curve, exits, title), path, title, words)


def figure(curve: Sequence[ExitPoint], exits: Sequence[float], title: str) -> "Figure":
    """Accuracy against the share that leaves early; ``exits``: the accuracy where all examples leave at one exit."""
    with looking_alike():
        from matplotlib.figure import Figure

        drawn = Figure(figsize=(5.4, 4.2), layout="constrained")
        axis, best = drawn.subplots(), nearly_free(curve)
        axis.plot([point.early for point in curve], [point.accuracy for point in curve], ".-", color=BLUE)
        label = f"threshold {best.threshold:.2f}: less than 0.005 lost"
        axis.plot(best.early, best.accuracy, "D", color=VERMILLION, markersize=7, label=label)
        for number, accuracy in enumerate(exits, 1):
            axis.axhline(accuracy, color=GRID, linewidth=0.9, linestyle=":")
            axis.annotate(f"exit {number} alone", (1, accuracy), ha="right", va="bottom", fontsize=8)
        axis.set(xlabel="share of the examples that leave early", ylabel="accuracy", xlim=(-0.02, 1.02))
        axis.set_title(plain(title))
        axis.legend()
    return drawn
