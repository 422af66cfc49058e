"""Pictures of a run, drawn from the record in its folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from istmpi.foreign import Fields
from istmpi.record import SUMMARY, RunFolder
from istmpi.report.figures import plain, save

PICTURES = PROGRESS, TIME = "progress.png", "time.png"
COLOURS = {"loss": "tab:orange", "score": "tab:blue", "rate": "tab:green"}


def draw(folder: Path) -> list[Path]:
    """Draw a run's folder: ``progress.png`` (score and loss against time and rounds), ``time.png`` (the phases).

    The learning rate has a panel of its own below them where it is not the same in all rounds.

    ImportError where matplotlib is not installed, DataError where the record is damaged, OutputError where a picture
    cannot be written.
    """
    import matplotlib

    matplotlib.use("agg")
    record = RunFolder(folder)
    summary = record.summary()
    lines, score_name = record.lines(), summary.text("score_name")
    phases, ranks = summary.figures("seconds", 0), summary.whole("ranks", 1)
    return [_progress(lines, score_name, folder / PROGRESS), _time(phases, ranks, folder / TIME)]


def missing(folder: Path) -> bool:
    """Whether a picture of a finished run is not there, or of an earlier part of it."""
    finished = (folder / SUMMARY).stat().st_mtime_ns
    pictures = [folder / name for name in PICTURES]
    return not all(path.exists() and path.stat().st_mtime_ns >= finished for path in pictures)


def _progress(lines: Sequence[Fields], score_name: str, path: Path) -> Path:
    from matplotlib import pyplot

    scored = [line for line in lines if "score" in line]
    scores, errors = ([line.inner("score").figure(name) for line in scored] for name in ("score", "loss"))
    losses = [line.figure("loss") for line in lines]
    rates = [line.figure("learning_rate", 0) for line in lines if "learning_rate" in line]
    changing = len(rates) == len(lines) and len(set(rates)) > 1  # none in the record of an earlier istmpi
    heights = [3, 3, 1][: 2 + changing]
    figure, axes = pyplot.subplots(
        len(heights),
        2,
        figsize=(9, sum(heights)),
        height_ratios=heights,
        sharey="row",
        sharex="col",
        layout="constrained",
    )
    for column, (key, label) in enumerate((("seconds", "training time (s)"), ("round", "rounds"))):
        everywhere, where = ([line.figure(key) for line in some] for some in (lines, scored))
        top, bottom, *rest = axes[:, column]
        top.plot(where, scores, "o-", color=COLOURS["score"])
        bottom.plot(everywhere, losses, color=COLOURS["loss"], label="train")
        bottom.plot(where, errors, "o-", color=COLOURS["score"], label="test")
        for axis in rest:
            axis.step([0, *everywhere], [rates[0], *rates], color=COLOURS["rate"], where="pre")
            axis.set_ylim(bottom=0)
        axes[-1, column].set_xlabel(label)
        for axis in axes[:, column]:
            axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel(f"test {plain(score_name)}")
    axes[1, 0].set_ylabel("loss")
    axes[1, 1].legend()
    if changing:
        axes[2, 0].set_ylabel("learning rate")
    return _save(figure, path)


def _time(phases: Mapping[str, float], ranks: int, path: Path) -> Path:
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 2.5), layout="constrained")
    axis.barh([plain(phase) for phase in phases], list(phases.values()), color=COLOURS["score"])
    axis.bar_label(axis.containers[0], [f"{seconds:.2f} s" for seconds in phases.values()], padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set_xlabel(f"seconds, mean over {ranks} ranks")
    return _save(figure, path)


def _save(figure, path: Path) -> Path:
    from matplotlib import pyplot

    try:
        save(figure, path)
    finally:
        pyplot.close(figure)
    return path
