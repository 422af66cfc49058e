"""The picture of a run, drawn from the record in its folder."""

from collections.abc import Sequence
from math import nan
from pathlib import Path

from istmpi.config import Run
from istmpi.foreign import Fields
from istmpi.methods import spec_of
from istmpi.record import SETTINGS, SUMMARY, RunFolder
from istmpi.report.figures import looking_alike, plain, save
from istmpi.report.styles import BLUE, GRID, INK, styles
from istmpi.units import SECONDS, axis_unit, counted

PICTURE = "progress.png"


def draw(folder: Path) -> Path:
    """Draw ``progress.png`` into a run's folder: score and loss, and the learning rate if it changes."""
    record = RunFolder(folder)
    summary, lines = record.summary(), record.lines()
    title, method = folder.name, ""
    if (folder / SETTINGS).is_file():
        run = Run.load(str(folder / SETTINGS))
        method = run.method.name
        title = f"{run.name}: {method}"
    title += f" on {counted(summary.whole('ranks', 1), 'rank')}"
    with looking_alike():
        _progress(lines, summary.text("score_name"), title, method, folder / PICTURE)
    return folder / PICTURE


def missing(folder: Path) -> bool:
    picture = folder / PICTURE
    return not picture.exists() or picture.stat().st_mtime_ns < (folder / SUMMARY).stat().st_mtime_ns


def _progress(lines: Sequence[Fields], score_name: str, title: str, method: str, path: Path) -> None:
    from matplotlib.figure import Figure

    split = "validation" if any("validation_score" in line for line in lines) else "test"
    keys = ("validation_score", "validation_loss") if split == "validation" else ("score", "test_loss")
    scored = [line for line in lines if keys[0] in line]
    scores, errors = ([line.figure(name) if name in line else nan for line in scored] for name in keys)
    rates = [line.figure("learning_rate", 0) for line in lines if "learning_rate" in line]
    changing = len(rates) == len(lines) and len(set(rates)) > 1  # the record of an earlier istmpi has none
    heights = [2.4, 2.4, 1.2][: 2 + changing]
    figure = Figure(figsize=(5.6, sum(heights) + 1), layout="constrained")
    axes = figure.subplots(len(heights), 1, height_ratios=heights, sharex=True)
    deals = bool(method) and spec_of(method).deals
    colour = styles([method])[method].colour if method else BLUE
    unit, factor = axis_unit(lines[-1].figure("seconds") if lines else 0, SECONDS)
    everywhere, where = ([line.figure("seconds") / factor for line in some] for some in (lines, scored))
    axes[0].plot(where, scores, "o-", color=colour)
    label = "training" + ", subnets" * deals
    axes[1].plot(everywhere, [line.figure("loss") for line in lines], "--", color=GRID, label=label)
    axes[1].plot(where, errors, "o-", color=colour, label=f"{split}, whole network")
    axes[1].legend()
    for axis in axes[2:]:
        axis.step([0, *everywhere], [rates[0], *rates], color=INK, where="pre")
        axis.set_ylim(bottom=0)
    for axis, text in zip(axes, (plain(f"{split} {score_name}"), "loss", "learning rate")):
        axis.set_ylabel(text)
        axis.tick_params(labelbottom=True)
    axes[-1].set_xlabel(f"training time ({unit}), {counted(len(lines), 'round')}")
    figure.suptitle(plain(title))
    save(figure, path, title)
