"""Draws a run from the record in its folder, and comparisons.

Raises ImportError without matplotlib.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.foreign import Fields
from istmpi.record import SETTINGS, SUMMARY, RunFolder
from istmpi.report.comparison import OFF_THE_CLOCK, Comparison, Group, sort_phases
from istmpi.report.styles import (
    BLUE,
    GRID,
    HATCHES,
    INK,
    LINES,
    PAPER,
    PHASES,
    REST,
    Style,
    name,
    plain,
    save,
    styles,
    svg,
    use_look,
)
from istmpi.units import BYTES, SECONDS, axis_unit, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = "progress.png"


def draw(folder: Path) -> Path:
    """Draw ``progress.png`` into a run's folder.

    It has score and loss, and the learning rate if it changes. Raises DataError for a bad record,
    OutputError if the file cannot be written.
    """
    record = RunFolder(folder)
    summary = record.summary()
    lines = record.lines()
    title = folder.name
    method = ""
    if (folder / SETTINGS).is_file():
        run = Run.load(str(folder / SETTINGS))
        method = run.method.name
        title = f"{run.name}: {method}"
    title += f" on {_list_ranks(lines, summary.whole('ranks', 1))}"
    with use_look():
        figure = _progress(lines, summary.text("score_name"), method)
        figure.suptitle(plain(title))
        save(figure, folder / PICTURE, title, follow=False)
    return folder / PICTURE


def _list_ranks(lines: Sequence[Fields], last: int) -> str:
    """Return the numbers of ranks of a run's jobs in words, in turn; ``last``: those of the last.

    Resumed jobs on as many ranks count once.
    """
    recorded = [line.whole("ranks", 1) for line in lines if "ranks" in line]
    in_turn = [ranks for ranks, _ in groupby([*recorded, last])]
    *earlier, latest = in_turn
    return "".join(f"{ranks}, then " for ranks in earlier) + counted(latest, "rank")


def needs_drawing(folder: Path) -> bool:
    """Return True if a run's picture is missing or older than its summary."""
    picture = folder / PICTURE
    if not picture.exists():
        return True
    return picture.stat().st_mtime_ns < (folder / SUMMARY).stat().st_mtime_ns


def _progress(lines: Sequence[Fields], score_name: str, method: str) -> Figure:
    """Return the figure of a run: scores, losses and changing rates against time."""
    from matplotlib.figure import Figure

    rates = [line.figure("learning_rate", 0) for line in lines if "learning_rate" in line]
    # Earlier versions of istmpi recorded no rates.
    changing = len(rates) == len(lines) and len(set(rates)) > 1
    heights = [2.4, 2.4]  # inches
    if changing:
        heights.append(1.2)
    # The inch more is for the title and the axis of time.
    figure = Figure(figsize=(5.6, sum(heights) + 1), layout="constrained")
    axes = figure.subplots(len(heights), 1, height_ratios=heights, sharex=True)
    unit, factor = axis_unit(lines[-1].figure("seconds") if lines else 0, SECONDS)
    times = [line.figure("seconds") / factor for line in lines]
    _progress_of_scores(axes, lines, times, method, score_name)
    if changing:
        # A line has the rate of the round that it ends, so each step begins at the earlier time.
        axes[2].step([0, *times], [rates[0], *rates], color=INK, where="pre")
        axes[2].set_ylim(bottom=0)
        axes[2].set_ylabel("learning rate")
    _mark_resumptions(axes, lines, times)
    for axis in axes:
        axis.tick_params(labelbottom=True)
    axes[-1].set_xlabel(f"training time ({unit}), {counted(len(lines), 'round')}")
    return figure


def _mark_resumptions(
    axes: Sequence[Axes], lines: Sequence[Fields], times: Sequence[float]
) -> None:
    """Draw a dotted line where a job resumed the run, and say on how many ranks."""
    for before, (line, time) in enumerate(zip(lines[1:], times)):
        ranks = _read_ranks(line)
        # Earlier versions of istmpi recorded the ranks alone.
        if "resumed_from" not in line and ranks == _read_ranks(lines[before]):
            continue
        for axis in axes:
            axis.axvline(time, color=INK, linewidth=0.9, linestyle=":")
        axes[0].annotate(
            f"resumed on {counted(ranks, 'rank')}",
            # At the foot of the panel, left of the line: scores rise.
            (time, 0),
            (-2, 3),
            xycoords=axes[0].get_xaxis_transform(),
            textcoords="offset points",
            rotation=90,
            va="bottom",
            ha="right",
            fontsize=7.5,
        )


def _read_ranks(line: Fields) -> int:
    if "ranks" not in line:
        return 1
    return line.whole("ranks", 1)


def _progress_of_scores(
    axes: Sequence[Axes],
    lines: Sequence[Fields],
    times: Sequence[float],
    method: str,
    score_name: str,
) -> None:
    """Draw scores into the first panel and losses into the second."""
    if any("validation_score" in line for line in lines):
        split = "validation"
        score = "validation_score"
        loss = "validation_loss"
    else:
        split = "test"
        score = "score"
        loss = "test_loss"
    scored = [(time, line) for time, line in zip(times, lines) if score in line]
    times_of_scores = [time for time, _ in scored]
    scores = [line.score(score) for _, line in scored]
    losses = [line.score(loss) if loss in line else nan for _, line in scored]
    colour = BLUE
    label = "training"
    if method:
        colour = styles([method])[method].colour
        if find_method_spec(method).deals:
            # Losses of subnets are not those of the whole network, which is scored.
            label = "training, subnets"
    axes[0].plot(times_of_scores, scores, "o-", color=colour)
    axes[0].set_ylabel(plain(f"{split} {score_name}"))
    training = [_read_loss(line) for line in lines]
    axes[1].plot(times, training, "--", color=GRID, label=label)
    axes[1].plot(times_of_scores, losses, "o-", color=colour, label=f"{split}, whole network")
    axes[1].set_ylabel("loss")
    axes[1].legend()


def _read_loss(line: Fields) -> float:
    """Return the training loss of a round; not a number if a user's own loop noted none."""
    if line.value("loss") is None:
        return nan
    return line.score("loss")


# ---- a comparison

WIDTH = 4.8
HEIGHT = 3.5
"""The size of a panel in inches. Its letters are readable on a phone."""
BAR = 0.35
COSTS: dict[str, tuple[str, Mapping[str, float]]] = {
    "seconds": ("training time", SECONDS),
    "bytes": ("bytes sent by all ranks", BYTES),
}
SPLIT = "Time by phase"


def pictures(comparison: Comparison) -> dict[str, str]:
    """Return reproducible <svg> elements by title.

    They show the score against time and bytes, and the time by phase.
    """
    score = _score_name(comparison)
    drawings: dict[str, Callable[[Axes], None]] = {}
    for cost, (words, _) in COSTS.items():
        title = f"{score[0].upper()}{score[1:]} against {words}"
        drawings[title] = partial(_draw_curves, comparison=comparison, cost=cost, title=title)
    if any(comparison.phases(group) for group in comparison.groups):
        drawings[SPLIT] = partial(_draw_phases, comparison=comparison)
    pictures = {}
    for number, (title, draw_into) in enumerate(drawings.items()):
        height = HEIGHT
        if title == SPLIT:
            # A bar for each group, below a legend and above an axis.
            height = max(HEIGHT, 1.6 + BAR * len(comparison.groups))
        with use_look():
            from matplotlib.figure import Figure

            figure = Figure(figsize=(WIDTH, height), layout="constrained")
            draw_into(figure.subplots())
        pictures[title] = svg(figure, title, str(number))
    return pictures


def _choose_styles(comparison: Comparison) -> dict[str, Style]:
    """Return a style for each group: its method's, with another line for each group of a method."""
    by_method = styles(group.method for group in comparison.groups)
    used: Counter[str] = Counter()
    chosen = {}
    for group in comparison.groups:
        style = by_method[group.method]
        lines = [style.line, *(line for line in LINES if line != style.line)]
        # More groups than lines repeat the lines.
        line = lines[used[group.method] % len(lines)]
        chosen[group.name] = Style(style.colour, style.marker, line)
        used[group.method] += 1
    return chosen


def _score_name(comparison: Comparison) -> str:
    split = "validation" if comparison.splits[0] else "test"
    return f"{split} {comparison.score_name}"


def _draw_curves(axis: Axes, comparison: Comparison, cost: str, title: str) -> None:
    """Draw the scores of all groups against a cost of `COSTS`."""
    chosen = _choose_styles(comparison)
    words, units = COSTS[cost]
    ends: list[float] = []
    for group in comparison.groups:
        ends += comparison.to_end(group, cost).values
    unit, factor = axis_unit(max(ends, default=0), units)
    drawn: list[float] = []
    for group in comparison.groups:
        drawn += _draw_group(axis, group, chosen[group.name], cost, factor)
    for target in comparison.targets:
        axis.axhline(target, color=GRID, linewidth=0.9, linestyle=":")
    if drawn:
        axis.legend()
        # Costs that are far apart, as those of IST and data parallel, need a logarithmic axis.
        if 0 < 50 * min(drawn) < max(drawn):
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter("{x:g}")
            axis.xaxis.set_minor_formatter("")
    axis.margins(x=0.08, y=0.1)
    axis.set(title=plain(title), ylabel=plain(_score_name(comparison)), xlabel=f"{words} ({unit})")


def _draw_group(axis: Axes, group: Group, style: Style, cost: str, factor: float) -> list[float]:
    """Draw a line for each run of a group, and return the costs that were drawn."""
    runs = [curve.points for curve in group.curves if curve.points]
    drawn: list[float] = []
    for number, points in enumerate(runs):
        costs = [getattr(point, cost) / factor for point in points]
        drawn += costs
        # Some eight markers a line, and one of them at its end.
        step = max(len(points) // 8, 1)
        axis.plot(
            costs,
            [point.score for point in points],
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            markevery=((len(points) - 1) % step, step),
            markeredgecolor=PAPER,
            markeredgewidth=0.4,
            # Lines of repeats overlap, and stay visible through each other.
            alpha=1 if len(runs) == 1 else 0.6,
            # One entry of the legend stands for all repeats.
            label=name(group.label) if number == 0 else None,
        )
    return drawn


def _choose_looks(phases: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return a colour and a hatch for each phase; no two phases look alike."""
    looks = {phase: (colour, "") for phase, colour in PHASES.items()}
    unlisted = [phase for phase in phases if phase not in PHASES]
    for number, phase in enumerate(unlisted):
        hatch = HATCHES[number // len(REST) % len(HATCHES)]
        looks[phase] = (REST[number % len(REST)], hatch)
    return looks


def _draw_phases(axis: Axes, comparison: Comparison) -> None:
    """Draw a bar of each group's phases."""
    by_group = [comparison.phases(group) for group in comparison.groups]
    phases = []
    for phase in sort_phases(phase for spent in by_group for phase in spent):
        if phase not in OFF_THE_CLOCK:
            phases.append(phase)
    longest = 0.0
    for spent in by_group:
        longest = max(longest, sum(spent.get(phase, 0.0) for phase in phases))
    unit, factor = axis_unit(longest, SECONDS)
    looks = _choose_looks(phases)
    places = range(len(by_group))
    starts = [0.0] * len(by_group)
    for phase in phases:
        lengths = [spent.get(phase, 0.0) / factor for spent in by_group]
        axis.barh(
            places,
            lengths,
            0.7,
            starts,
            label=plain(phase),
            color=looks[phase][0],
            hatch=looks[phase][1],
            edgecolor=INK,
            linewidth=0.6,
        )
        starts = [start + length for start, length in zip(starts, lengths)]
    if phases:
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=min(len(phases), 4))
    axis.set_yticks(places, [name(group.label) for group in comparison.groups])
    axis.invert_yaxis()  # the first group is on top, as in the tables
    axis.grid(visible=False, axis="y")
    # The legend's rows, of four phases each, are between the title and the bars.
    rows = -(-len(phases) // 4)
    axis.set_title(SPLIT, pad=8 + 13 * rows)
    axis.set_xlabel(f"training time ({unit}), mean over ranks and repeats")
