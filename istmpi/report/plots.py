"""Pictures of a run, drawn from the record in its folder."""

import json
from pathlib import Path

from istmpi.record import SUMMARY, RunFolder
from istmpi.report.figures import save

COLOURS = {"loss": "tab:orange", "score": "tab:blue"}


def draw(folder: Path) -> list[Path]:
    """Draw a run's folder: ``progress.png`` (score and loss against time and rounds), ``time.png`` (the phases).

    ImportError where matplotlib is not installed, OutputError where a picture cannot be written.
    """
    import matplotlib

    matplotlib.use("agg")
    record = RunFolder(folder)
    summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    return [_progress(record, summary), _time(record, summary)]


def _progress(record: RunFolder, summary: dict) -> Path:
    from matplotlib import pyplot

    rounds = record.metrics()
    scored = [line for line in rounds if "score" in line]
    figure, axes = pyplot.subplots(2, 2, figsize=(9, 6), sharey="row", sharex="col", layout="constrained")
    for column, (key, label) in enumerate((("seconds", "training time (s)"), ("round", "rounds"))):
        where = [line[key] for line in scored]
        top, bottom = axes[:, column]
        top.plot(where, [line["score"]["score"] for line in scored], "o-", color=COLOURS["score"])
        bottom.plot(
            [line[key] for line in rounds], [line["loss"] for line in rounds], color=COLOURS["loss"], label="train"
        )
        bottom.plot(where, [line["score"]["loss"] for line in scored], "o-", color=COLOURS["score"], label="test")
        bottom.set_xlabel(label)
        for axis in (top, bottom):
            axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel(f"test {summary['score_name']}")
    axes[1, 0].set_ylabel("loss")
    axes[1, 1].legend()
    return _save(figure, record.path / "progress.png")


def _time(record: RunFolder, summary: dict) -> Path:
    from matplotlib import pyplot

    phases = summary["seconds"]
    figure, axis = pyplot.subplots(figsize=(7, 2.5), layout="constrained")
    axis.barh(list(phases), list(phases.values()), color=COLOURS["score"])
    axis.bar_label(axis.containers[0], [f"{seconds:.2f} s" for seconds in phases.values()], padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set_xlabel(f"seconds, mean over {summary['ranks']} ranks")
    return _save(figure, record.path / "time.png")


def _save(figure, path: Path) -> Path:
    from matplotlib import pyplot

    try:
        save(figure, path)
    finally:
        pyplot.close(figure)
    return path
