"""The pictures of `benchmarks/time_to_accuracy.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from time_analysis import mean_curve
from time_found import ALL_NAMES, NAMES, Contestant, Situation
from time_plan import BATCH

TAB = ("red", "orange", "blue", "cyan", "green", "olive", "purple", "brown", "pink", "grey")
COLOURS = {name: f"tab:{colour}" for name, colour in zip(ALL_NAMES, TAB)}


def draw(shown: list[Situation], path: Path) -> None:
    """Accuracy against time in every situation, then against bytes and samples, and the split, with the most ranks."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    tasks = list(dict.fromkeys(one.task for one in shown))
    ranks = sorted({one.ranks for one in shown})
    columns = max(len(ranks), 3)
    size = (4.2 * columns, 3.3 * (len(tasks) + 1))
    figure, axes = pyplot.subplots(len(tasks) + 1, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat:
        axis.set_visible(False)
    for situation in shown:
        axis = axes[tasks.index(situation.task), ranks.index(situation.ranks)]
        _curves(axis, situation, lambda one, _: one.seconds)
        axis.set(xlabel="training time (s)", title=f"{situation.task.title}, P = {situation.ranks}")
    last = next(one for one in shown if one.ranks == max(one.ranks for one in shown if one.task == shown[0].task))
    _curves(axes[-1, 0], last, lambda one, _: one.bytes / 1e6)
    axes[-1, 0].set(xlabel="MB sent by all ranks", title=f"P = {last.ranks}: bytes")
    _curves(axes[-1, 1], last, lambda _, situation: situation.ranks * BATCH)
    axes[-1, 1].set(xlabel="examples", title=f"P = {last.ranks}: samples")
    _bars(axes[-1, 2], last)
    there = {name: title for name, title in NAMES.items() if any(name in one.contestants for one in shown)}
    handles = [pyplot.Line2D([], [], color=COLOURS[name]) for name in there]
    figure.legend(handles, there.values(), loc="outside lower center", ncols=6, frameon=False)
    about = shown[0].about
    faster = " of ten times the rate" * (shown[0].bandwidth == "10x")
    figure.suptitle(f"Accuracy on a slow network{faster}, J = {about['J']}; PyTorch's methods dashed")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _curves(axis, situation: Situation, scale: Callable[[Contestant, Situation], float]) -> None:
    """Every contestant's mean curve over seeds, with its steps in another unit."""
    axis.set_visible(True)
    for name, one in situation.contestants.items():
        steps, accuracies = zip(*mean_curve(one.curves)[1:])
        each = scale(one, situation)
        line = "--" if name.startswith("pytorch") else "-"
        axis.plot([step * each for step in steps], accuracies, line, color=COLOURS[name], linewidth=1.5)
    axis.set(xscale="log", ylabel="test accuracy")
    axis.xaxis.set_minor_formatter("")
    axis.grid(alpha=0.3)


def _bars(axis, situation: Situation) -> None:
    """The share of computing in a step."""
    axis.set_visible(True)
    names = list(situation.contestants)
    titles, colours = [NAMES[name] for name in names], [COLOURS[name] for name in names]
    whole = [situation.contestants[name].seconds for name in names]
    inside = []
    for name, seconds in zip(names, whole):
        spent = situation.contestants[name].split()
        inside.append(sum(spent.get(phase, 0.0) for phase in ("compute", "forward", "update")) / seconds)
    bars = axis.barh(titles, [1.0] * len(names), color=colours, alpha=0.3)
    axis.barh(titles, inside, color=colours)
    axis.bar_label(bars, [f"{seconds:.2g} s" for seconds in whole], padding=3)
    axis.set(xlim=(0, 1.3), xlabel="share of a step; dark: computing alone", title=f"P = {situation.ranks}: time")
    axis.invert_yaxis()


def draw_scaling(rows: list[dict], path: Path) -> None:
    """Measured points over the cost model's lines, both for ranks of equal speed."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 5), layout="constrained")
    for name, title in ALL_NAMES.items():
        for key, style in (("model, equal ranks", "-"), ("measured, equal ranks", "o")):
            points = [(row["P"], row[key]) for row in rows if row["method"] == title and row[key] != "-"]
            if points:
                label = title if style == "o" else None
                axis.plot(*zip(*points), style, color=COLOURS[name], label=label, fillstyle="none")
    axis.set(xscale="log", yscale="log", xlabel="ranks", ylabel="examples a second")
    axis.set_title("Measured (circles) and by the cost model (lines)")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
