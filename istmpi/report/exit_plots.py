"""A picture of early exits: accuracy against the share of the examples that leave early."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from istmpi.errors import ConfigError
from istmpi.exits import ExitPoint, nearly_free
from istmpi.report.cost_plots import FORMATS
from istmpi.report.figures import plain, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(curve: Sequence[ExitPoint], exits: Sequence[float], title: str, path: Path) -> None:
    """Draw a curve into a file; ConfigError for another format, OutputError where it cannot be written."""
    require_drawable(path)
    save(figure(curve, exits, title), path)


def require_drawable(path: Path) -> None:
    """Refuse, with a ConfigError, a file of a format that is not drawn."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"--plot {path}: must end in {', '.join(FORMATS)}.")


def figure(curve: Sequence[ExitPoint], exits: Sequence[float], title: str) -> "Figure":
    """Two panels: accuracy against the share that leaves early, and by threshold who leaves where.

    ``exits``: the accuracy of every exit where all examples leave there.
    """
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = drawn.subplots(1, 2)
    best = nearly_free(curve)
    left.plot([point.early for point in curve], [point.accuracy for point in curve], ".-", color="tab:blue")
    left.plot(
        best.early, best.accuracy, "o", color="tab:red", label=f"threshold {best.threshold:.2f}: less than 0.005 lost"
    )
    for number, accuracy in enumerate(exits, 1):
        left.axhline(accuracy, color="grey", linewidth=0.8, linestyle=":")
        left.annotate(f"exit {number} alone", (1, accuracy), ha="right", va="bottom", fontsize=8, color="grey")
    left.set_xlabel("share of the examples that leave early")
    left.set_ylabel("accuracy")
    left.set_xlim(-0.02, 1.02)
    left.legend(fontsize=8)
    left.grid(alpha=0.3)
    thresholds = [point.threshold for point in curve]
    shares = list(zip(*(point.shares for point in curve)))
    right.stackplot(thresholds, *shares, labels=[f"exit {number}" for number in range(1, len(exits) + 1)], alpha=0.8)
    right.axvline(best.threshold, color="tab:red", linewidth=0.8)
    right.set_xlabel("threshold of the normalised entropy")
    right.set_ylabel("share that leaves at each exit")
    right.set_xlim(0, 1)
    right.set_ylim(0, 1)
    right.legend(fontsize=8, loc="upper left")
    drawn.suptitle(plain(title), fontsize=10)
    return drawn
