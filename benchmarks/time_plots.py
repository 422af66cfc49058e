"""The pictures of `benchmarks/time_to_accuracy.py`.

python benchmarks/time_plots.py        # those that are drawn from the results alone
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from reporting import RESULTS
from time_analysis import mean_curve
from time_found import ALL_NAMES, Contestant, Situation
from time_plan import BATCH, TENTH

from istmpi.report.figures import looking_alike, save
from istmpi.report.styles import BLUE, ORANGE, STYLES, Style
from istmpi.units import in_seconds as written

LOOKS = {**{name: STYLES[name] for name in ALL_NAMES if name != TENTH}, TENTH: Style(BLUE, "H", ":")}
SAID = {**{name: name for name in ALL_NAMES}, TENTH: "ist, a tenth redealt"}
"""Methods are called as run files call them, in every picture."""


def draw(shown: list[Situation], path: Path) -> None:
    """Accuracy against time in every situation, then against bytes and samples, and the split, with the most ranks."""
    with looking_alike():
        from matplotlib.figure import Figure

        tasks = list(dict.fromkeys(one.task for one in shown))
        ranks = sorted({one.ranks for one in shown})
        columns = max(len(ranks), 3)
        size = (4.4 * columns, 3.5 * (len(tasks) + 1))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(len(tasks) + 1, columns, squeeze=False)
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
        axes[-1, 1].set(xlabel="examples consumed by all ranks", title=f"P = {last.ranks}: samples")
        _bars(axes[-1, 2], last)
        about = shown[0].about
        faster = " of ten times the rate" * (shown[0].bandwidth == "10x")
        figure.suptitle(f"Accuracy on a slow network{faster}, J = {about['J']}")
        figure.savefig(path, dpi=110)


def _curves(axis, situation: Situation, scale: Callable[[Contestant, Situation], float]) -> None:
    """Draw every contestant's mean curve over seeds, with its steps in another unit."""
    axis.set_visible(True)
    for name, one in situation.contestants.items():
        steps, accuracies = zip(*mean_curve(one.curves)[1:])
        each, look = scale(one, situation), LOOKS[name]
        costs = [step * each for step in steps]
        every = max(len(steps) // 8, 1)
        style = {"color": look.colour, "marker": look.marker, "markevery": every, "label": SAID[name]}
        axis.plot(costs, accuracies, look.line, **style)
    axis.set(xscale="log", ylabel="test accuracy")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("")
    axis.legend()


def _bars(axis, situation: Situation) -> None:
    """The share of computing in a step."""
    axis.set_visible(True)
    names = list(situation.contestants)
    titles, colours = [SAID[name] for name in names], [LOOKS[name].colour for name in names]
    whole = [situation.contestants[name].seconds for name in names]
    inside = []
    for name, seconds in zip(names, whole):
        spent = situation.contestants[name].split()
        inside.append(sum(spent.get(phase, 0.0) for phase in ("compute", "forward", "update")) / seconds)
    bars = axis.barh(titles, [1.0] * len(names), color=colours, alpha=0.3)
    axis.barh(titles, inside, color=colours)
    axis.bar_label(bars, [f"{seconds:.2g} s" for seconds in whole], padding=3)
    axis.set(xlim=(0, 1.3), xlabel="share of a step; dark: computing alone", title=f"P = {situation.ranks}: time")
    axis.grid(visible=False, axis="y")
    axis.invert_yaxis()


def draw_scaling(rows: list[dict], path: Path) -> None:
    """Measured points over the cost model's lines, both for ranks of equal speed."""
    with looking_alike():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 6), layout="constrained")
        axis = figure.subplots()
        for name, title in ALL_NAMES.items():
            look = LOOKS[name]
            for key, marker, line in (
                ("model, equal ranks", "", look.line),
                ("measured, equal ranks", look.marker, ""),
            ):
                points = [(row["P"], row[key]) for row in rows if row["method"] == title and row[key] != "-"]
                if points:
                    style = {"color": look.colour, "fillstyle": "none", "label": SAID[name] if line else None}
                    axis.plot(*zip(*points), marker=marker, linestyle=line, **style)
        axis.set(xscale="log", yscale="log", xlabel="ranks", ylabel="examples a second, all ranks")
        axis.set_title("Examples a second: measured (markers) and by the cost model (lines)")
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.yaxis.set_major_formatter("{x:,.0f}")
        axis.margins(x=0.12)
        axis.legend()
        figure.savefig(path, dpi=110)


def draw_panel(details: list[dict], controls: list[dict], path: Path) -> None:
    """Seconds to the highest accuracy that all methods reach with the most ranks, beside their controls."""
    details = [row for row in details if (row["P"], row["J"], row["Mbit/s"]) == (8, 20, "200")]
    networks = list(dict.fromkeys(row["network"] for row in details))
    found = {}
    for network in networks:
        top = max(row["accuracy"] for row in details if row["network"] == network)
        seconds = {
            name: row["seconds"]
            for name, title in ALL_NAMES.items()
            for row in details
            if name in PANEL and (row["network"], row["accuracy"], row["method"]) == (network, top, title)
        }
        found[network, top] = seconds | _of_controls(controls, network, top)
    said = "; ".join(
        f"{network} to {top}: " + ", ".join(f"{PANEL[name][0]} {written(took)}" for name, took in seconds.items())
        for (network, top), seconds in found.items()
    )
    with looking_alike():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 7.2), layout="constrained")
        axes = figure.subplots(len(found), 1, sharex=True, height_ratios=[len(one) for one in found.values()])
        for axis, ((network, top), seconds) in zip(axes, found.items()):
            names = [name for name in PANEL if name in seconds]
            for place, name in enumerate(names):
                title, look = PANEL[name]
                axis.plot(seconds[name], place, look.marker, color=look.colour, markersize=7)
                about = (seconds[name], place), (8, 0)
                axis.annotate(written(seconds[name]), *about, textcoords="offset points", va="center")
            axis.set_yticks(range(len(names)), [PANEL[name][0] for name in names])
            axis.set(xscale="log", ylim=(len(names) - 0.5, -0.5), title=f"{network}: accuracy {top:g}")
            axis.xaxis.set_major_formatter("{x:,.0f}")
        axes[-1].set_xlabel("seconds of training")
        axes[-1].margins(x=0.2)
        title = "Time to the same accuracy: 8 ranks, 200 Mbit/s, J = 20"
        figure.suptitle(title)
    save(figure, path, title, said)


NEVER, NARROW = "never", "narrow"
PANEL = {
    "ist": ("ist", STYLES["ist"]),
    TENTH: (SAID[TENTH], LOOKS[TENTH]),
    NEVER: ("ist, never redealt", Style(BLUE, "8")),
    NARROW: ("a narrow network", Style(ORANGE, "*")),
    "local-sgd": ("local-sgd", STYLES["local-sgd"]),
    "data-parallel": ("data-parallel", STYLES["data-parallel"]),
}
"""What the panel shows, the controls among them, by name: how it is called and drawn."""


def _of_controls(controls: list[dict], network: str, accuracy: float) -> dict[str, float]:
    """Seconds that the controls of a network took, with data alike on all ranks; the faster of the narrow ones."""
    titles = {"IST, never redealt": NEVER, "narrow network, local SGD": NARROW, "narrow network, DiLoCo": NARROW}
    data = network.split(" 4096")[0].split(" 3072")[0]
    full = [row["network"] for row in controls if row["method"] == "IST" and row["network"] == network]
    found = {}
    for row in controls if full else []:
        reached = re.search(rf"\b{accuracy:g} in [\d,]+ steps, ([\d.]+) s", row["reached"])
        if row["network"].startswith(data) and row["data"] == "alike" and row["method"] in titles and reached:
            name = titles[row["method"]]
            found[name] = min(found.get(name, float("inf")), float(reached[1]))
    return found


if __name__ == "__main__":
    results = RESULTS
    tables = {
        name: json.loads((results / f"{name}.json").read_text("utf-8")) for name in ("time-to-accuracy", "controls")
    }
    draw_panel(tables["time-to-accuracy"]["details"], tables["controls"]["rows"], results / "panel.svg")
    draw_scaling(json.loads((results / "scaling.json").read_text("utf-8"))["rows"], results / "scaling.png")
