"""Pictures of what runs cost: the paper's Figure 2, and what follows from it on a cluster."""

from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from istmpi.cost.survey import Row
from istmpi.report.figures import looking_alike, plain, require_drawable, save
from istmpi.report.styles import GRID, styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPEED_UP = "Speed-up over one process"
PANELS: list[tuple[str, str, Callable[[Row], float]]] = [
    ("Traffic", "Mfloat received per gradient step, all ranks", lambda row: row["received_floats_per_step"] / 1e6),
    ("Computation", "GFLOP per gradient step, all ranks", lambda row: row["flops_per_step"] / 1e9),
    ("Time of an epoch", "seconds", lambda row: row["seconds_per_epoch"]),
    (SPEED_UP, "ratio of examples a second", lambda row: row["speed_up"]),
    ("Memory of a rank", "MB", lambda row: row["memory_bytes"] / 1e6),
]


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    require_drawable(path)
    save(figure(rows, title), path, title)


def figure(rows: Sequence[Row], title: str) -> "Figure":
    with looking_alike():
        from matplotlib.figure import Figure

        drawn = Figure(figsize=(8, 11), layout="constrained")
        counts, looks = sorted({row["ranks"] for row in rows}), styles(row["method"] for row in rows)
        *axes, spare = drawn.subplots(3, 2).flat
        spare.remove()
        for axis, (name, unit, value) in zip(axes, PANELS, strict=True):
            for method, look in looks.items():
                points = [(row["ranks"], value(row) or nan) for row in rows if row["method"] == method]
                # The logarithmic axis has no place for zero.
                axis.plot(
                    *zip(*points),
                    color=look.colour,
                    marker=look.marker,
                    linestyle=look.line,
                    markersize=5,
                    fillstyle="none",
                    label=method,
                )
            if name == SPEED_UP:
                axis.plot(counts, counts, color=GRID, linewidth=0.8, label="linear speed-up")
            axis.set(title=name, xlabel="ranks (machines)", ylabel=unit, xscale="log", yscale="log")
            axis.set_xticks(counts if len(counts) <= 8 else counts[::2], minor=False)
            axis.xaxis.set_major_formatter("{x:,.0f}")
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
            axis.minorticks_off()
            axis.legend()
        drawn.suptitle(fill(plain(title), 80))
    return drawn
