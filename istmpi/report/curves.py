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

from istmpi.config import Run, Train
from istmpi.errors import DataError, UserError, kind_of
from istmpi.files import appearing
from istmpi.foreign import MOST, Fields, plain_value, printable
from istmpi.record import (
    COMPARISON,
    CURE,
    FAILURE,
    METRICS,
    SETTINGS,
    SUMMARY,
    RunFolder,
    list_own_scores,
    read_further,
)
from istmpi.report.job_figures import TITLES, find_sent_outside
from istmpi.report.styles import PHASES

FILE = "curve.json"
FORMAT = "istmpi curve"
VERSION = 1
BY_NAME = {"phases": 0.0, "further": -MOST, "sent_outside": -MOST, "joules": 0.0}
"""The keys of a curve with figures by name, and the least of these figures."""


@dataclass(frozen=True)
class Point:
    round: int
    seconds: float
    """The training time, without evaluations."""
    bytes: float
    """The bytes sent by all ranks, without evaluations; another program may give a fraction."""
    examples: float
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
    """The ranks of each part of a resumed run, and the bytes that they sent.

    Empty if the ranks did not change.
    """
    further: Mapping[str, float] = field(default_factory=dict)
    """The last further scores on the test split by their names, such as macro-F1."""
    sent_outside: Mapping[str, float] = field(default_factory=dict)
    """Figures of what all ranks sent in the last job, by the names of `job_figures.TITLES`:
    bytes by purpose, about all bytes between hosts, and collective calls."""
    joules: Mapping[str, float] = field(default_factory=dict)
    """The energy of the last job, by its source; empty if it is unknown."""

    @property
    def scores(self) -> list[float]:
        return [point.score for point in self.points]

    @property
    def ranks_in_turn(self) -> int | str | None:
        return ", then ".join(str(ranks) for ranks, _ in self.jobs) or self.ranks

    @property
    def sent_by_a_rank(self) -> float:
        """The bytes that a rank sent, as the mean over ranks; the curve has a number of ranks."""
        jobs = self.jobs
        if not jobs:
            assert self.ranks is not None, "the curve does not say how many ranks there were"
            jobs = ((self.ranks, self.points[-1].bytes),)
        return sum(sent / ranks for ranks, sent in jobs)

    @property
    def job_figures(self) -> dict[tuple[str, str], float]:
        """The figures of the last job by their titles and units; 0 for what it did not send."""
        sent = self.sent_outside
        figures = {titled: sent.get(name, 0.0) for name, titled in TITLES.items()}
        return figures | {(f"energy ({by})", "J"): joules for by, joules in self.joules.items()}

    def save(self, path: Path) -> None:
        tree = {"format": FORMAT, "version": VERSION, **asdict(self)}
        with appearing(path) as file:
            file.write(json.dumps(tree).encode() + b"\n")


def read_curves(
    paths: Iterable[Path], left_out: Callable[[str], None] | None = None
) -> list[Curve]:
    """Read the curves of runs.

    A path is a run's folder, a folder of such folders, or a file like ``curve.json``. Raises
    DataError for an unreadable run. ``left_out`` gets the message instead if the run is in a folder
    of runs, and another run can be read.
    """
    curves = []
    problems = []
    for path in paths:
        for run in _find_runs(path):
            try:
                curves.append(_read(run))
            except UserError as error:
                problem = str(error)
                # Not every error names the file; the user must learn which run it is.
                if str(run) not in problem:
                    problem = f"{run}: {error}"
                # A run that the user named itself must be readable.
                if run == path or not left_out:
                    raise DataError(problem) from error
                problems.append(problem)
    if not problems:
        return curves
    # Without another run, nothing can be shown, so the first problem is the answer.
    if left_out is None or not curves:
        raise DataError(problems[0])
    for problem in problems:
        left_out(problem)
    return curves


def _find_runs(path: Path) -> list[Path]:
    """Return the runs that a path means: the path itself, or the runs inside."""
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
    if (folder / FILE).is_file():
        return True
    return (folder / METRICS).is_file() and (folder / SETTINGS).is_file()


def _read(path: Path) -> Curve:
    if path.is_file():
        return _read_file(path)
    # A curve that a program wrote counts before the records of istmpi.
    if (path / FILE).is_file():
        return _read_file(path / FILE)
    return _read_folder(path)


def _read_folder(folder: Path) -> Curve:
    """Return the curve of a run of istmpi from the records in its folder."""
    run = Run.load(str(folder / SETTINGS))
    record = RunFolder(folder)
    lines = record.lines()
    summary = None
    if (folder / SUMMARY).is_file():
        summary = record.summary()
    failure = _read_failure(folder / FAILURE)
    key = _find_score_key(lines)
    scored = [line for line in lines if key in line]
    # Bytes after the last score belong to no point of the curve.
    counted = lines[: lines.index(scored[-1]) + 1] if scored else []
    data = ""
    if summary and "data" in summary:
        data = printable(summary.text("data"))
    # The later of two records knows better; a run that failed at its start has only the failure.
    records = [record for record in (summary, *lines[-1:], failure) if record]
    return Curve(
        method=_name_method(folder, run.method.name),
        points=_points([(line, line.score(key)) for line in scored], str(folder / METRICS)),
        seed=run.train.seed,
        ranks=next((record.whole("ranks", 1) for record in records if "ranks" in record), None),
        score_name=next(
            (record.text("score_name") for record in records if "score_name" in record), ""
        ),
        name=run.name,
        phases=_sum_phases(summary, lines),
        settings=run.flat(),
        problem=_describe_problem(run.train, lines, summary, failure),
        source=printable(str(folder)),
        data=data,
        test=_find_test_score(lines, key),
        jobs=_divide_into_jobs(counted),
        further=_find_further(lines, summary),
        sent_outside=find_sent_outside(summary),
        joules=_find_joules(summary),
    )


def _name_method(folder: Path, method: str) -> str:
    """Return a run's name in its comparison, such as narrow, or its ``method``."""
    # A comparison names its folders METHOD-SEED.
    name, _, _ = folder.name.rpartition("-")
    if name and (folder.parent / COMPARISON).is_file():
        return name
    return method


def _find_score_key(lines: Sequence[Fields]) -> str:
    """Return the key of the scores to compare: those of the validation split, if there are any."""
    if any("validation_score" in line for line in lines):
        return "validation_score"
    return "score"


def _find_test_score(lines: Sequence[Fields], key: str) -> float | None:
    """Return the last score of the test split; None if it is what ``key`` names."""
    tested = [line for line in lines if "score" in line]
    if key == "score" or not tested:
        return None
    return tested[-1].score("score")


def _find_further(lines: Sequence[Fields], summary: Fields | None) -> dict[str, float]:
    tested = [line for line in lines if "score" in line]
    if not tested:
        return {}
    last = tested[-1]
    further = read_further(last)
    for name, key in list_own_scores(summary).items():
        if key in last:
            further[name] = last.score(key)
    return further


def _find_joules(summary: Fields | None) -> dict[str, float]:
    if summary is None or "energy" not in summary:
        return {}
    energy = summary.inner("energy")
    return {printable(energy.text("source")): energy.figure("joules", 0)}


def _read_failure(path: Path) -> Fields | None:
    if not path.is_file():
        return None
    return Fields.read(path, f"{path} is not a record of a failed run", CURE)


def _describe_problem(
    train: Train, lines: Sequence[Fields], summary: Fields | None, failure: Fields | None
) -> str:
    """Return the reason why a run counts as incomplete; empty if it is complete."""
    if failure:
        return f"failed: {failure.text('error')}"
    done = lines[-1].whole("round") if lines else 0
    # Only a run that has ended has a summary, whatever its number of rounds.
    if summary:
        return ""
    if train.epochs is not None:
        return f"not finished: {done} rounds of {train.epochs:g} epochs"
    if done < train.rounds:
        return f"not finished: {done} of {train.rounds} rounds"
    return ""


def _sum_phases(summary: Fields | None, lines: Sequence[Fields]) -> dict[str, float]:
    """Return the seconds by phase of all jobs; of times outside rounds, only those of the last."""
    if summary is None or "seconds" not in summary:
        return {}
    # In the order of a round, which tables and pictures follow.
    phases: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    phases.update(summary.figures("seconds", 0))
    for name, spent in phases.items():
        key = f"{name.replace('-', '_')}_seconds"
        # The summary has the last job's seconds; the lines have those of all jobs' rounds.
        phases[name] = max(spent, sum(line.figure(key) for line in lines if key in line))
    return {name: spent for name, spent in phases.items() if spent}


def _divide_into_jobs(lines: Iterable[Fields]) -> tuple[tuple[int, float], ...]:
    """Return ranks and bytes of each part of a run with an unchanged number of ranks.

    Nothing for a single part.
    """
    counted = (line for line in lines if "ranks" in line)
    ends = []
    for ranks, group in groupby(counted, lambda line: line.whole("ranks", 1)):
        *_, last = group
        ends.append((ranks, last.figure("bytes", 0)))
    if len(ends) < 2:
        return ()
    # A line counts the bytes of the run, also those of earlier jobs.
    jobs = []
    start: float = 0
    for ranks, end in ends:
        jobs.append((ranks, end - start))
        start = end
    return tuple(jobs)


def _read_file(path: Path) -> Curve:
    """Return the curve in a ``curve.json``, which may be another program's."""
    tree = Fields.read(path, printable(str(path)), f"Write it as {FORMAT}, version {VERSION}.")
    _require_format(tree)
    # Another program may leave out what it does not know.
    texts = dict.fromkeys(("method", "score_name", "name", "problem", "source", "data"), "")
    for key in texts:
        if key in tree:
            texts[key] = tree.text(key)
    if not texts["method"]:
        raise tree.refused("method", tree.value("method"), "must name the method")
    settings = {}
    if "settings" in tree:
        inner = tree.inner("settings")
        settings = {printable(key): plain_value(inner.value(key)) for key in inner}
    figures: dict[str, Any] = {
        key: tree.figures(key, least) for key, least in BY_NAME.items() if key in tree
    }
    test = None
    if "test" in tree and tree.value("test") is not None:
        test = tree.score("test")
    scored = [(point, point.score("score")) for point in tree.inners("points")]
    return Curve(
        method=texts["method"],
        points=_points(scored, str(path)),
        seed=tree.whole("seed") if "seed" in tree else 0,
        ranks=tree.whole("ranks", 1),
        score_name=texts["score_name"],
        name=texts["name"],
        settings=settings,
        problem=texts["problem"],
        source=texts["source"] or printable(str(path)),
        data=texts["data"],
        test=test,
        **figures,
    )


def _require_format(tree: Fields) -> None:
    for key, expected in (("format", FORMAT), ("version", VERSION)):
        if tree.value(key) != expected:
            raise tree.refused(key, tree.value(key), f"must be {expected!r}")
    keys = {field.name for field in fields(Curve)} | {"format", "version"}
    for key in tree:
        if key not in keys:
            raise tree.refused(printable(key), tree.value(key), "is not a key of a curve")


def _points(scored: Iterable[tuple[Fields, float]], source: str) -> tuple[Point, ...]:
    """Return points from their fields and scores; raise DataError if a cost falls."""
    points = []
    for fields_of_point, score in scored:
        point = Point(
            round=fields_of_point.whole("round"),
            seconds=fields_of_point.figure("seconds", 0),
            bytes=fields_of_point.figure("bytes", 0),
            examples=fields_of_point.figure("examples", 0),
            score=score,
        )
        points.append(point)
    # A falling cost is a mistake of another program, or two runs in one file.
    for point, following in zip(points, points[1:]):
        for name in ("round", "seconds", "bytes", "examples"):
            if getattr(following, name) < getattr(point, name):
                raise DataError(
                    f"{source}: the point of round {following.round} falls below that of round "
                    f"{point.round}; rounds, seconds, bytes and examples must not decrease."
                )
    return tuple(points)
