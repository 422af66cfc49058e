"""Pictures of what runs cost: the paper's Figure 2, and what follows from it on a cluster."""

from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from istmpi.cost.survey import Row
from istmpi.report.figures import looking_alike, plain, require_drawable, save
from istmpi.report.labels import Named, label
from istmpi.report.styles import GRID, styles
from istmpi.report.units import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS: list[tuple[str, str, Callable[[Row], float]]] = [
    ("Traffic", "Mfloat received per gradient step, all ranks", lambda row: row["received_floats_per_step"] / 1e6),
    ("Computation", "GFLOP per gradient step, all ranks", lambda row: row["flops_per_step"] / 1e9),
    ("Time of an epoch", "seconds", lambda row: row["seconds_per_epoch"]),
    ("Speed-up over one process", "times the examples a second", lambda row: row["speed_up"]),
    ("Memory of a rank", "MB", lambda row: row["memory_bytes"] / 1e6),
]
"""Title, unit of the y axis, and the figure; the first two are the paper's Figure 2."""

LINEAR = "linear speed-up"


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw a survey into a file; ConfigError for another format, OutputError where it cannot be written."""
    require_drawable(path)
    save(figure(rows, title), path, title, described(rows))


def described(rows: Sequence[Row]) -> str:
    """What the picture shows, in words: every panel at the most ranks of a method."""
    ends = {row["method"]: row for row in sorted(rows, key=lambda row: row["ranks"])}
    return " ".join(
        f"{name} ({unit}): "
        + "; ".join(f"{method} {number(value(row))} on {row['ranks']} ranks" for method, row in ends.items())
        + "."
        for name, unit, value in PANELS
    )


def figure(rows: Sequence[Row], title: str) -> "Figure":
    """A panel for each of `PANELS`, with a line for every method against the number of ranks."""
    with looking_alike():
        from matplotlib.figure import Figure

        drawn = Figure(figsize=(13, 9.4), layout="constrained")
        grid = drawn.add_gridspec(2, 6)
        places = [grid[0, :3], grid[0, 3:], grid[1, :2], grid[1, 2:4], grid[1, 4:]]
        counts = sorted({row["ranks"] for row in rows})
        labelled = []
        for place, (name, unit, value) in zip(places, PANELS, strict=True):
            axis = drawn.add_subplot(place)
            labelled.append((axis, _lines(axis, rows, value)))
            axis.set(title=name, xlabel="ranks (machines)", ylabel=unit, xscale="log", yscale="log")
            axis.set_xticks(counts if len(counts) <= 8 else counts[::2], minor=False)
            axis.xaxis.set_major_formatter("{x:,.0f}")
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
            axis.minorticks_off()
            axis.margins(x=0.15, y=0.08)
        speed, named = labelled[3]
        speed.plot(counts, counts, color=GRID, linewidth=0.8, label=LINEAR)
        named.append(Named(counts, counts, GRID, LINEAR))
        drawn.suptitle(plain(title))
        label(drawn, labelled)
    return drawn


def _lines(axis, rows: Sequence[Row], value: Callable[[Row], float]) -> list[Named]:
    """Draw every method; those whose lines are the same all along share a label."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    looks, alike = styles(methods), {}
    for method in methods:
        mine = [row for row in rows if row["method"] == method]
        ranks, values = [row["ranks"] for row in mine], [value(row) for row in mine]
        style = looks[method]
        axis.plot(
            ranks,
            [one or nan for one in values],  # nothing sent has no place on a logarithmic axis
            color=style.colour,
            marker=style.marker,
            linestyle=style.line,
            markersize=5,
            fillstyle="none",
            label=method,
        )
        alike.setdefault(tuple((rank, f"{one:.2g}") for rank, one in zip(ranks, values)), []).append(method)
    found = []
    for points, those in alike.items():
        x, y = zip(*((rank, float(one) or nan) for rank, one in points))
        found.append(Named(x, y, looks[those[0]].colour, ", ".join(those)))
    return found
