"""Pictures of what runs cost: the paper's Figure 2, and what follows from it on a cluster."""

from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from istmpi.cost.survey import Row
from istmpi.errors import ConfigError
from istmpi.report.figures import plain, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES = {
    "ist": ("tab:blue", "o", "-"),
    "ist-push-pull": ("tab:cyan", "o", ":"),
    "local-sgd": ("tab:green", "s", "-"),
    "data-parallel": ("tab:red", "D", "-"),
    "data-parallel-broadcast": ("tab:orange", "^", "-"),
    "data-parallel-halving-doubling": ("tab:pink", "x", ":"),
}
"""Colour, marker and line; other methods take what is left."""

PANELS: list[tuple[str, str, Callable[[Row], float]]] = [
    ("Traffic", "Mfloat received per gradient step, all ranks", lambda row: row["received_floats_per_step"] / 1e6),
    ("Computation", "GFLOP per gradient step, all ranks", lambda row: row["flops_per_step"] / 1e9),
    ("Time of an epoch", "seconds", lambda row: row["seconds_per_epoch"]),
    ("Speed-up over one process", "times the examples a second", lambda row: row["speed_up"]),
    ("Memory of a rank", "MB", lambda row: row["memory_bytes"] / 1e6),
]
"""Title, unit of the y axis, and the figure; the first two are the paper's Figure 2."""

FORMATS = (".png", ".svg", ".pdf")


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw a survey into a file; ConfigError for another format, OutputError where it cannot be written."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"--plot {path}: must end in {', '.join(FORMATS)}.")
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    drawn = figure(rows, title)
    try:
        save(drawn, path)
    finally:
        pyplot.close(drawn)


def figure(rows: Sequence[Row], title: str) -> "Figure":
    """A panel for each of `PANELS`, with a line for every method against the number of ranks."""
    from matplotlib import pyplot

    drawn = pyplot.figure(figsize=(12, 8.2), layout="constrained")
    grid = drawn.add_gridspec(2, 6)
    places = [grid[0, :3], grid[0, 3:], grid[1, :2], grid[1, 2:4], grid[1, 4:]]
    for place, (name, unit, value) in zip(places, PANELS, strict=True):
        axis = drawn.add_subplot(place)
        _lines(axis, rows, value)
        axis.set(title=name, xlabel="ranks (machines)", ylabel=unit, xscale="log", yscale="log")
        counts = sorted({row["ranks"] for row in rows})
        axis.set_xticks(counts if len(counts) <= 8 else counts[::2], minor=False)
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    counts = sorted({row["ranks"] for row in rows})
    drawn.axes[3].plot(counts, counts, color="grey", linewidth=0.8, label="linear speed-up")
    handles, labels = drawn.axes[3].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False)
    drawn.suptitle(plain(title), fontsize=11)
    return drawn


def _lines(axis, rows: Sequence[Row], value: Callable[[Row], float]) -> None:
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        colour, marker, line = STYLES.get(method, (None, ".", "-"))
        axis.plot(
            [row["ranks"] for row in mine],
            [value(row) or nan for row in mine],  # nothing sent has no place on a logarithmic axis
            color=colour,
            marker=marker,
            linestyle=line,
            markersize=5,
            fillstyle="none",
            label=method,
        )
