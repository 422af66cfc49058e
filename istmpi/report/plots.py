"""Pictures of a run, drawn from the record in its folder."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from istmpi.config import Run
from istmpi.foreign import Fields
from istmpi.methods import spec_of
from istmpi.record import SETTINGS, SUMMARY, RunFolder
from istmpi.report.comparison import OFF_THE_CLOCK, in_order
from istmpi.report.figures import looking_alike, plain, save
from istmpi.report.styles import BLUE, GRID, INK, PHASES, styles
from istmpi.report.units import SECONDS, axis_unit
from istmpi.units import counted, in_seconds

PICTURES = PROGRESS, TIME = "progress.png", "time.png"

TRAINED = {
    True: "the subnets, each the part of the network that a rank was dealt and trains in a round",
    False: "what every rank trains, on its own batches",
}
"""The owner of the training loss where a method deals out, and where it does not."""
EXPLAINED = (
    "Training loss: of {}; mean over ranks and local steps. Test loss: of the whole network, on examples that nobody "
    "trains on."
)
OF_SUBNETS = " A subnet has fewer units, so its loss may well be the higher one."


def draw(folder: Path) -> list[Path]:
    """Draw a run's folder: ``progress.png`` (score and loss against time and rounds), ``time.png`` (the phases).

    The learning rate has a panel of its own below them where it is not the same in all rounds.

    ImportError where matplotlib is not installed, DataError where the record is damaged, OutputError where a picture
    cannot be written.
    """
    record = RunFolder(folder)
    summary, lines = record.summary(), record.lines()
    ranks, method = summary.whole("ranks", 1), ""
    title = folder.name
    if (folder / SETTINGS).is_file():
        run = Run.load(str(folder / SETTINGS))
        method = run.method.name
        title = f"{run.name}: {method}"
    title += f" on {counted(ranks, 'rank')}"
    score_name, phases = summary.text("score_name"), summary.figures("seconds", 0)
    with looking_alike():
        return [
            _progress(lines, score_name, title, method, folder / PROGRESS),
            _time(phases, f"Where the time went, {title}", folder / TIME),
        ]


def missing(folder: Path) -> bool:
    """Tell whether a picture of a finished run is missing, or older than the run's end."""
    finished = (folder / SUMMARY).stat().st_mtime_ns
    pictures = [folder / name for name in PICTURES]
    return not all(path.exists() and path.stat().st_mtime_ns >= finished for path in pictures)


def _progress(lines: Sequence[Fields], score_name: str, title: str, method: str, path: Path) -> Path:
    from matplotlib.figure import Figure

    split = "validation" if any("validation_score" in line for line in lines) else "test"
    keys = ("validation_score", "validation_loss") if split == "validation" else ("score", "test_loss")
    scored = [line for line in lines if keys[0] in line]
    scores, errors = ([line.figure(name) for line in scored] for name in keys)
    losses = [line.figure("loss") for line in lines]
    rates = [line.figure("learning_rate", 0) for line in lines if "learning_rate" in line]
    changing = len(rates) == len(lines) and len(set(rates)) > 1  # the record of an earlier istmpi has none
    heights = [3, 3, 1.2][: 2 + changing]
    figure = Figure(figsize=(10, sum(heights) + 1.2), layout="constrained")
    axes = figure.subplots(len(heights), 2, height_ratios=heights, sharey="row", sharex="col")
    deals = bool(method) and spec_of(method).deals
    colour = styles([method])[method].colour if method else BLUE
    seconds, factor = axis_unit(lines[-1].figure("seconds") if lines else 0, SECONDS)
    names = plain(f"{split} {score_name}"), "loss", "learning rate"
    columns = ("seconds", factor, f"training time ({seconds})"), ("round", 1, "rounds")
    for column, (key, scale, label) in zip(axes.T, columns):
        everywhere, where = ([line.figure(key) / scale for line in some] for some in (lines, scored))
        top, bottom, *rest = column
        top.plot(where, scores, "o-", color=colour)
        bottom.plot(everywhere, losses, "--", color=GRID, label="training" + ", subnets" * deals)
        bottom.plot(where, errors, "o-", color=colour, label=f"{split}, whole network")
        bottom.legend()
        for axis in rest:
            axis.step([0, *everywhere], [rates[0], *rates], color=INK, where="pre")
            axis.set_ylim(bottom=0)
        column[-1].set_xlabel(label)
    for axis, text in zip(axes[:, 0], names):
        axis.set_ylabel(text)
    figure.suptitle(plain(title))
    explanation = EXPLAINED.format(TRAINED[deals]) + OF_SUBNETS * deals
    figure.supxlabel(textwrap.fill(explanation, 130), fontsize=8.5)
    end = f"test {score_name} {scores[-1]:.4g} at the end" if scores else "never evaluated"
    save(figure, path, title, f"{end}. {explanation}")
    return path


def _time(phases: Mapping[str, float], title: str, path: Path) -> Path:
    from matplotlib.figure import Figure

    names, whole = in_order(phases), sum(phases.values())
    unit, factor = axis_unit(max(phases.values(), default=0), SECONDS)
    figure = Figure(figsize=(7, 1.4 + 0.28 * len(names)), layout="constrained")
    axis = figure.subplots()
    bars = axis.barh(
        [plain(name) for name in names],
        [phases[name] / factor for name in names],
        color=[PHASES.get(name, GRID) for name in names],
        edgecolor=INK,
        linewidth=0.6,
    )
    shares = (f"{phases[name] / factor:.3g} {unit}, {phases[name] / whole:.0%}" if whole else "0 s" for name in names)
    axis.bar_label(bars, list(shares), padding=3)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.2)
    axis.set_title(plain(title))
    axis.set_xlabel(f"time ({unit}), mean over the ranks; {' and '.join(OFF_THE_CLOCK)} are not training time")
    save(figure, path, title, ", ".join(f"{name} {in_seconds(phases[name])}" for name in names))
    return path
