"""Pictures of a comparison: the score against time, bytes and examples, and where the time went."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from istmpi.errors import ConfigError
from istmpi.report.comparison import OFF_THE_CLOCK, Comparison
from istmpi.report.cost_plots import FORMATS, STYLES
from istmpi.report.figures import plain, quietly, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPARE = ("tab:purple", "tab:cyan", "tab:orange", "tab:brown", "tab:pink", "tab:olive", "tab:grey", "black")
"""Colours of what has none in `STYLES`."""

PHASES = {
    "deal": "#e78ac3",
    "hop": "#1b9e77",
    "pull": "#66c2a5",
    "compute": "#8da0cb",
    "wait": "#fc8d62",
    "push": "#a6d854",
}
REST = ("#ffd92f", "#e5c494", "#b3b3b3")
"""Phases have colours that no method has."""


def draw(comparison: Comparison, title: str, path: Path) -> None:
    """Draw a comparison into a file; ConfigError for another format, OutputError where it cannot be written."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"--plot {path}: must end in {', '.join(FORMATS)}.")
    save(figure(comparison, title), path)


def svg(comparison: Comparison, title: str) -> str:
    """The picture as an <svg> element that stands by itself inside HTML; the same figures give the same text."""
    import matplotlib

    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": "istmpi"}), quietly():
        figure(comparison, title).savefig(file, format="svg", metadata=nothing)
    text = file.getvalue()
    return text[text.index("<svg") :]


def figure(comparison: Comparison, title: str) -> "Figure":
    """Three panels with a line for every run, in its method's colour, and a bar of phases for every method."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(12, 7.6), layout="constrained")
    colours = _colours(comparison)
    panels = [
        ("training time (s)", lambda point: point.seconds),
        ("bytes sent by all ranks", lambda point: point.bytes),
        ("examples consumed by all ranks", lambda point: point.examples),
    ]
    axes = drawn.subplot_mosaic("abc;ddd", height_ratios=[3, 1 + 0.25 * len(comparison.groups)])
    for axis, (label, value) in zip((axes["a"], axes["b"], axes["c"]), panels):
        _lines(axis, comparison, colours, value)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes["a"].set_ylabel(f"test {comparison.score_name}")
    if comparison.groups:
        axes["a"].legend(loc="lower right", fontsize=8)
    _bars(axes["d"], comparison)
    drawn.suptitle(plain(title), fontsize=11)
    return drawn


def _colours(comparison: Comparison) -> dict[str, str]:
    """A colour for every group: its method's own for the first of a method, else one that is left."""
    colours: dict[str, str | None] = {}
    for group in comparison.groups:
        own = STYLES.get(group.curves[0].method, (None,))[0]
        colours[group.name] = own if own and own not in colours.values() else None
    spare = [colour for colour in SPARE if colour not in colours.values()]
    for place, name in enumerate(name for name, colour in colours.items() if colour is None):
        colours[name] = spare[place % len(spare)]
    return colours


def _lines(axis: "Axes", comparison: Comparison, colours: dict[str, str], value) -> None:
    there = [point for group in comparison.groups for curve in group.curves for point in curve.points]
    for group in comparison.groups:
        label = plain(group.name)
        for curve in group.curves:
            axis.plot(
                [value(point) for point in curve.points],
                [point.score for point in curve.points],
                color=colours[group.name],
                alpha=1 if len(group.curves) == 1 else 0.6,
                linewidth=1.3,
                marker=".",
                markersize=3,
                label=label,
            )
            label = None
    for target in comparison.targets:
        axis.axhline(target, color="grey", linewidth=0.7, linestyle=":")
    if there and _wide([value(point) for point in there]):
        axis.set_xscale("log")


def _wide(values: list[float]) -> bool:
    """Whether only a logarithmic axis shows them all; where nothing is sent there is none."""
    return min(values) > 0 and max(values) > 50 * min(values)


def _bars(axis: "Axes", comparison: Comparison) -> None:
    """Seconds by phase, side by side."""
    by_group = [comparison.phases(group) for group in comparison.groups]
    found = dict.fromkeys(name for phases in by_group for name in phases if name not in OFF_THE_CLOCK)
    found = sorted(found, key=lambda name: [*PHASES].index(name) if name in PHASES else len(PHASES))
    names = [plain(group.name) for group in comparison.groups]
    starts = [0.0] * len(names)
    places = range(len(names))
    for number, phase in enumerate(found):
        lengths = [phases.get(phase, 0.0) for phases in by_group]
        colour = PHASES.get(phase, REST[number % len(REST)])
        axis.barh(places, lengths, left=starts, color=colour, label=plain(phase), height=0.7)
        starts = [start + length for start, length in zip(starts, lengths)]
    axis.set_yticks(places, names)
    axis.invert_yaxis()
    axis.margins(x=0.02)
    axis.set_xlabel("seconds, mean over ranks and repeats; evaluating and saving are not on the clock")
    if found:
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(found), fontsize=8, frameon=False)
