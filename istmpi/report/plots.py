"""Pictures of a run, drawn from the record in its folder."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from istmpi.config import Run
from istmpi.foreign import Fields
from istmpi.methods import spec_of
from istmpi.record import SETTINGS, SUMMARY, RunFolder
from istmpi.report.comparison import OFF_THE_CLOCK
from istmpi.report.figures import looking_alike, plain, save
from istmpi.report.labels import Named, label
from istmpi.report.styles import BLUE, GRID, INK, PHASES, styles
from istmpi.report.units import seconds_scale
from istmpi.units import in_seconds

PICTURES = PROGRESS, TIME = "progress.png", "time.png"

TRAINED = {
    True: "the subnets, each the part of the network that a rank was dealt and trains in a round",
    False: "what every rank trains, on its own batches",
}
"""Whose training loss it is, where a method deals out and where it does not."""
EXPLAINED = (
    "Training loss: of {}; mean over ranks and local steps. Test loss: of the whole network, on examples that nobody "
    "trains on. {}"
)
OF_SUBNETS = "A subnet has fewer units, so its loss may well be the higher one."


@dataclass(frozen=True)
class About:
    """What titles and explanations say of a run."""

    title: str
    method: str
    deals: bool

    @staticmethod
    def of(folder: Path, ranks: int) -> "About":
        """Read from its settings, which may be missing."""
        where = f"on {ranks} rank{'s' * (ranks != 1)}"
        if not (folder / SETTINGS).is_file():
            return About(f"{folder.name} {where}", "", False)
        run = Run.load(str(folder / SETTINGS))
        return About(f"{run.name}: {run.method.name} {where}", run.method.name, spec_of(run.method.name).deals)

    @property
    def explanation(self) -> str:
        return EXPLAINED.format(TRAINED[self.deals], OF_SUBNETS * self.deals).strip()


def draw(folder: Path) -> list[Path]:
    """Draw a run's folder: ``progress.png`` (score and loss against time and rounds), ``time.png`` (the phases).

    The learning rate has a panel of its own below them where it is not the same in all rounds.

    ImportError where matplotlib is not installed, DataError where the record is damaged, OutputError where a picture
    cannot be written.
    """
    record = RunFolder(folder)
    with looking_alike():
        summary = record.summary()
        lines, score_name = record.lines(), summary.text("score_name")
        phases, ranks = summary.figures("seconds", 0), summary.whole("ranks", 1)
        about = About.of(folder, ranks)
        return [_progress(lines, score_name, about, folder / PROGRESS), _time(phases, about, folder / TIME)]


def missing(folder: Path) -> bool:
    """Whether a picture of a finished run is not there, or of an earlier part of it."""
    finished = (folder / SUMMARY).stat().st_mtime_ns
    pictures = [folder / name for name in PICTURES]
    return not all(path.exists() and path.stat().st_mtime_ns >= finished for path in pictures)


def _progress(lines: Sequence[Fields], score_name: str, about: About, path: Path) -> Path:
    from matplotlib.figure import Figure

    split = "validation" if any("validation_score" in line for line in lines) else "test"
    keys = ("validation_score", "validation_loss") if split == "validation" else ("score", "test_loss")
    scored = [line for line in lines if keys[0] in line]
    scores, errors = ([line.figure(name) for line in scored] for name in keys)
    losses = [line.figure("loss") for line in lines]
    rates = [line.figure("learning_rate", 0) for line in lines if "learning_rate" in line]
    changing = len(rates) == len(lines) and len(set(rates)) > 1  # none in the record of an earlier istmpi
    heights = [3, 3, 1.2][: 2 + changing]
    figure = Figure(figsize=(10, sum(heights) + 1.2), layout="constrained")
    axes = figure.subplots(len(heights), 2, height_ratios=heights, sharey="row", sharex="col")
    colour = styles([about.method])[about.method].colour if about.method else BLUE
    scale = seconds_scale(lines[-1].figure("seconds") if lines else 0)
    labelled = []
    columns = (("seconds", scale.factor, "training time", f" ({scale.unit})"), ("round", 1, "rounds", ""))
    for column, (key, factor, against, unit) in enumerate(columns):
        everywhere, where = ([line.figure(key) / factor for line in some] for some in (lines, scored))
        top, bottom, *rest = axes[:, column]
        top.plot(where, scores, "o-", color=colour)
        bottom.plot(everywhere, losses, "--", color=GRID)
        bottom.plot(where, errors, "o-", color=colour)
        trained = "training, subnets" if about.deals else "training"
        named = [Named(everywhere, losses, GRID, trained), Named(where, errors, colour, f"{split}, whole network")]
        bottom.margins(y=0.15)
        labelled.append((bottom, named))
        for axis, what in zip(axes[:, column], (f"{split.capitalize()} {score_name}", "Loss", "Learning rate")):
            axis.set_title(plain(f"{what} against {against}"))
        for axis in rest:
            axis.step([0, *everywhere], [rates[0], *rates], color=INK, where="pre")
            axis.set_ylim(bottom=0)
        axes[-1, column].set_xlabel(f"{against}{unit}")
    axes[0, 0].set_ylabel(plain(f"{split} {score_name}"))
    axes[1, 0].set_ylabel("loss")
    if changing:
        axes[2, 0].set_ylabel("learning rate")
    figure.suptitle(plain(about.title))
    figure.supxlabel(textwrap.fill(about.explanation, 130), fontsize=8.5)
    label(figure, labelled)
    said = f"test {score_name} {scores[-1]:.4g} at the end" if scores else "never evaluated"
    save(figure, path, about.title, f"{said}. {about.explanation}")
    return path


def _time(phases: Mapping[str, float], about: About, path: Path) -> Path:
    from matplotlib.figure import Figure

    order = [*PHASES, *(name for name in phases if name not in PHASES)]
    names = sorted(phases, key=lambda name: (name in OFF_THE_CLOCK, order.index(name)))
    spent, whole = [phases[name] for name in names], sum(phases.values())
    scale = seconds_scale(max(spent, default=0))
    figure = Figure(figsize=(7, 1.4 + 0.28 * len(names)), layout="constrained")
    axis = figure.subplots()
    bars = axis.barh(
        [plain(name) for name in names],
        [one / scale.factor for one in spent],
        color=[PHASES.get(name, GRID) for name in names],
        edgecolor=INK,
        linewidth=0.6,
    )
    shares = (f"{one / scale.factor:.3g} {scale.unit}, {one / whole:.0%}" if whole else "0 s" for one in spent)
    axis.bar_label(bars, list(shares), padding=3)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.2)
    axis.set(title=plain(f"Where the time went, {about.title}"))
    axis.set_xlabel(f"time ({scale.unit}), mean over the ranks; {' and '.join(OFF_THE_CLOCK)} are not training time")
    description = ", ".join(f"{name} {in_seconds(seconds)}" for name, seconds in zip(names, spent))
    save(figure, path, f"Where the time went, {about.title}", description)
    return path
