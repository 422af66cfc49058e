"""Pictures of a run, drawn from the record in its folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from istmpi.foreign import Fields
from istmpi.record import SUMMARY, RunFolder
from istmpi.report.figures import plain, save

PICTURES = PROGRESS, TIME = "progress.png", "time.png"
COLOURS = {"loss": "tab:orange", "score": "tab:blue"}


def draw(folder: Path) -> list[Path]:
    """Draw a run's folder: ``progress.png`` (score and loss against time and rounds), ``time.png`` (the phases).

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
    figure, axes = pyplot.subplots(2, 2, figsize=(9, 6), sharey="row", sharex="col", layout="constrained")
    for column, (key, label) in enumerate((("seconds", "training time (s)"), ("round", "rounds"))):
        where = [line.figure(key) for line in scored]
        top, bottom = axes[:, column]
        top.plot(where, scores, "o-", color=COLOURS["score"])
        bottom.plot([line.figure(key) for line in lines], losses, color=COLOURS["loss"], label="train")
        bottom.plot(where, errors, "o-", color=COLOURS["score"], label="test")
        bottom.set_xlabel(label)
        for axis in (top, bottom):
            axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel(f"test {plain(score_name)}")
    axes[1, 0].set_ylabel("loss")
    axes[1, 1].legend()
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
