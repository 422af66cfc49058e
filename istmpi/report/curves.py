"""The curve of one run: its scores against time, bytes and examples, and the time of each phase.

Runs of istmpi record the curve in their folders; other programs write a ``curve.json``
(docs/following.md).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from istmpi.config import Run
from istmpi.errors import DataError, UserError, kind_of
from istmpi.files import appearing
from istmpi.foreign import Fields, plain_value, printable
from istmpi.record import CURE, FAILURE, METRICS, SETTINGS, SUMMARY, RunFolder
from istmpi.report.styles import PHASES

FILE = "curve.json"
FORMAT = "istmpi curve"
VERSION = 1


@dataclass(frozen=True)
class Point:
    round: int
    seconds: float
    """The training time, without evaluations."""
    bytes: int
    """The bytes sent by all ranks, without evaluations."""
    examples: int
    score: float
    """The score on the validation split if the run uses one, else on the test split."""


@dataclass(frozen=True)
class Curve:
    method: str
    points: tuple[Point, ...]
    seed: int = 0
    """Runs with the same seed usually begin with the same network and see the same batches."""
    ranks: int | None = None
    score_name: str = ""
    name: str = ""
    phases: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    source: str = ""
    data: str = ""
    """A fingerprint of the training data; empty if unknown."""
    test: float | None = None
    """The last score on the test split if the points are on the validation split; else None."""
    jobs: tuple[tuple[int, float], ...] = ()
    """The ranks of each part of a resumed run, and the bytes that they sent; empty if the ranks did
    not change."""

    @property
    def ranks_in_turn(self) -> int | str | None:
        return ", then ".join(str(ranks) for ranks, _ in self.jobs) or self.ranks

    @property
    def sent_by_a_rank(self) -> float:
        return sum(
            sent / ranks for ranks, sent in self.jobs or [(self.ranks, self.points[-1].bytes)]
        )

    def save(self, path: Path) -> None:
        with appearing(path) as file:
            file.write(
                json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}).encode() + b"\n"
            )


def read_curves(
    paths: Iterable[Path], left_out: Callable[[str], None] | None = None
) -> list[Curve]:
    """Read the curves of runs. A path is a run's folder, a folder of such folders, or a file like
    ``curve.json``.

    Raises DataError for an unreadable run. ``left_out`` gets the message instead if the run is in a
    folder of runs, and another run can be read.
    """
    curves, problems = [], []
    for given, run in ((path, run) for path in paths for run in _found(path)):
        try:
            curves.append(_curve(run))
        except UserError as error:
            problem = str(error) if str(run) in str(error) else f"{run}: {error}"
            if run == given or not left_out:
                raise DataError(problem) from error
            problems.append(problem)
    if problems and not (left_out and curves):
        raise DataError(problems[0])
    for problem in problems:
        left_out(problem)
    return curves


def _found(path: Path) -> list[Path]:
    if path.is_file() or _is_run(path):
        return [path]
    if not path.exists():
        raise DataError(f"{path} does not exist.")
    if not path.is_dir():
        raise DataError(
            f"{path} is {kind_of(path)}; it must be a run's folder, or a file like {FILE}."
        )
    inside = sorted(folder for folder in path.iterdir() if folder.is_dir() and _is_run(folder))
    if not inside:
        raise DataError(
            f"{path} is not a run's folder and contains none ({METRICS} and {SETTINGS}, or {FILE})."
        )
    return inside


def _is_run(folder: Path) -> bool:
    return (folder / FILE).is_file() or all(
        (folder / name).is_file() for name in (METRICS, SETTINGS)
    )


def _curve(path: Path) -> Curve:
    file = path if path.is_file() else path / FILE
    return _load(file) if file.is_file() else _of_run(path)


def _of_run(folder: Path) -> Curve:
    run, record = Run.load(str(folder / SETTINGS)), RunFolder(folder)
    lines = record.lines()
    summary = record.summary() if (folder / SUMMARY).is_file() else None
    failure = None
    if (folder / FAILURE).is_file():
        failure = Fields.read(
            folder / FAILURE, f"{folder / FAILURE} is not a record of a failed run", CURE
        )
    done, rounds = lines[-1].whole("round") if lines else 0, run.train.rounds
    problem = ""
    if failure:
        problem = f"failed: {failure.text('error')}"
    elif not summary and done < rounds:
        problem = f"not finished: {done} of {rounds} rounds"
    key = "validation_score" if any("validation_score" in line for line in lines) else "score"
    scored = [line for line in lines if key in line]
    tested = [line for line in lines if "score" in line] if key != "score" else []
    records = [*filter(None, [summary]), *lines[-1:], *filter(None, [failure])]
    return Curve(
        run.method.name,
        _points([(line, line.figure(key)) for line in scored], str(folder)),
        run.train.seed,
        next((record.whole("ranks", 1) for record in records if "ranks" in record), None),
        next((record.text("score_name") for record in records if "score_name" in record), ""),
        run.name,
        _phases(summary.figures("seconds", 0), lines) if summary and "seconds" in summary else {},
        run.flat(),
        problem,
        source=printable(str(folder)),
        data=printable(summary.text("data")) if summary and "data" in summary else "",
        test=tested[-1].figure("score") if tested else None,
        jobs=_jobs(lines[: lines.index(scored[-1]) + 1] if scored else ()),
    )


def _phases(last_job: Mapping[str, float], lines: Sequence[Fields]) -> dict[str, float]:
    """Return the seconds by phase of all jobs; of times outside rounds, only those of the last."""
    phases = dict.fromkeys(PHASES, 0.0) | last_job
    for name, spent in phases.items():
        key = f"{name.replace('-', '_')}_seconds"
        phases[name] = max(spent, sum(line.figure(key) for line in lines if key in line))
    return {name: spent for name, spent in phases.items() if spent}


def _jobs(lines: Iterable[Fields]) -> tuple[tuple[int, float], ...]:
    """Return ranks and bytes of each part of a run with an unchanged number of ranks; nothing for a
    single part."""
    counted = (line for line in lines if "ranks" in line)
    by_ranks = groupby(counted, lambda line: line.whole("ranks", 1))
    parts = [(ranks, [*group][-1].figure("bytes", 0)) for ranks, group in by_ranks]
    return tuple(
        (ranks, end - start)
        for (ranks, end), (_, start) in zip(parts, [(0, 0), *parts])
        if parts[1:]
    )


def _load(path: Path) -> Curve:
    tree = Fields.read(path, printable(str(path)), f"Write it as {FORMAT}, version {VERSION}.")
    for key, expected in (("format", FORMAT), ("version", VERSION)):
        if tree.value(key) != expected:
            raise tree.refused(key, tree.value(key), f"must be {expected!r}")
    keys = {field.name for field in fields(Curve)} | {"format", "version"}
    if unknown := [key for key in tree if key not in keys]:
        raise tree.refused(printable(unknown[0]), tree.value(unknown[0]), "is not a key of a curve")
    texts = {
        key: tree.text(key)
        for key in ("method", "score_name", "name", "problem", "source", "data")
        if key in tree
    }
    if not texts.get("method"):
        raise tree.refused("method", tree.value("method"), "must name the method")
    settings = tree.inner("settings") if "settings" in tree else {}
    return Curve(
        **{**texts, "source": texts.get("source") or printable(str(path))},
        points=_points(
            [(point, point.figure("score")) for point in tree.inners("points")], str(path)
        ),
        seed=tree.whole("seed") if "seed" in tree else 0,
        ranks=tree.whole("ranks", 1),
        phases=tree.figures("phases", 0) if "phases" in tree else {},
        test=tree.figure("test") if "test" in tree and tree.value("test") is not None else None,
        settings={printable(key): plain_value(settings.value(key)) for key in settings},
    )


def _points(scored: Iterable[tuple[Fields, float]], source: str) -> tuple[Point, ...]:
    costs = ("seconds", "bytes", "examples")
    points = [
        Point(point.whole("round"), *(point.figure(name, 0) for name in costs), score)
        for point, score in scored
    ]
    for point, next in zip(points, points[1:]):
        if any(getattr(next, name) < getattr(point, name) for name in ("round", *costs)):
            raise DataError(
                f"{source}: the point of round {next.round} falls below that of round {point.round}; rounds, "
                "seconds, bytes and examples must not decrease."
            )
    return tuple(points)
