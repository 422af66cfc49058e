"""What one run tells a comparison: its score along the way against time, bytes and examples, and where the time went.

Runs of istmpi leave it in their folders. Other programs that are to be compared with them write a ``curve.json``:

    {"format": "istmpi curve", "version": 1, "method": "torch-ddp", "seed": 0, "ranks": 8, "score_name": "accuracy",
     "points": [{"round": 1, "seconds": 2.5, "bytes": 1000, "examples": 2560, "score": 0.4}, ...]}
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from istmpi.config import Run
from istmpi.errors import DataError, OutputError
from istmpi.record import FAILURE, METRICS, SETTINGS, SUMMARY, RunFolder

FILE = "curve.json"
FORMAT = "istmpi curve"
VERSION = 1

LOWER_IS_BETTER = ("mean absolute error",)
"""Scores that are errors; all others are the better the higher."""


@dataclass(frozen=True)
class Point:
    """One evaluation."""

    round: int
    """Rounds done."""
    seconds: float
    """Of training; the clock stands still during evaluations."""
    bytes: int
    """Sent by all ranks, evaluations left out."""
    examples: int
    """Consumed by all ranks."""
    score: float
    """On the test split."""


@dataclass(frozen=True)
class Curve:
    """One run."""

    method: str
    points: tuple[Point, ...]
    seed: int = 0
    """Runs of the same seed began with the same network and saw the same batches."""
    ranks: int | None = None
    """None where the run did not get far enough to say."""
    score_name: str = ""
    """What the score is; empty where the run did not get far enough to say."""
    name: str = ""
    """Of what is learnt, for titles."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase, the mean over ranks."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By dotted names; where two runs of a comparison differ in one, it becomes part of their names."""
    problem: str = ""
    """Why the run is not what it was meant to be: failed, or not finished."""
    source: str = ""
    """Where this was read from."""

    def save(self, path: Path) -> None:
        """Write it as a file that `read` reads."""
        try:
            path.write_text(json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}) + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({error.strerror}).") from None


def read(paths: Iterable[Path]) -> list[Curve]:
    """The runs of some folders: each a run's own, or one with such folders in it; or files like ``curve.json``.

    DataError for one that is none of these, or damaged.
    """
    return [_curve(one) for path in paths for one in _found(path)]


def _found(path: Path) -> list[Path]:
    if path.is_file() or _is_run(path):
        return [path]
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder.")
    inside = sorted(one for one in path.iterdir() if one.is_dir() and _is_run(one))
    if not inside:
        raise DataError(f"{path}: is no run's folder and has none in it ({METRICS} and {SETTINGS}, or {FILE}).")
    return inside


def _is_run(folder: Path) -> bool:
    return (folder / FILE).is_file() or all((folder / name).is_file() for name in (METRICS, SETTINGS))


def _curve(path: Path) -> Curve:
    if path.is_file():
        return _load(path)
    return _load(path / FILE) if (path / FILE).is_file() else _of_run(path)


def _of_run(folder: Path) -> Curve:
    """What a run of istmpi left."""
    run = Run.load(str(folder / SETTINGS))
    lines = RunFolder(folder).metrics()
    summary, failure = (_json(folder / name) if (folder / name).is_file() else {} for name in (SUMMARY, FAILURE))
    last = lines[-1] if lines else {}
    done, rounds = last.get("round", 0), run.train.rounds
    problem = ""
    if failure:
        problem = f"failed: {failure['error']}"
    elif not summary and done < rounds:
        problem = f"not finished: {done} of {rounds} rounds"
    points = tuple(
        Point(line["round"], line["seconds"], line["bytes"], line["examples"], line["score"]["score"])
        for line in lines
        if "score" in line
    )
    known = {**failure, **last, **summary}
    return Curve(
        run.method.name,
        points,
        run.train.seed,
        known.get("ranks"),
        known.get("score_name", ""),
        run.name,
        summary.get("seconds", {}),
        run.flat(),
        problem,
        source=str(folder),
    )


def _load(path: Path) -> Curve:
    """A file of another program's."""
    tree = _json(path)
    if tree.pop("format", None) != FORMAT or tree.pop("version", None) != VERSION:
        raise DataError(f"{path}: is not {FORMAT} of version {VERSION}.")
    unknown = set(tree) - {one.name for one in fields(Curve)}
    try:
        points = tuple(Point(**point) for point in tree.pop("points"))
        figures = [(p.round, p.seconds, p.bytes, p.examples) for p in points]
        ordered = all(a <= b for one, next in zip(figures, figures[1:]) for a, b in zip(one, next))
        finite = all(math.isfinite(value) for point in points for value in asdict(point).values())
        curve = Curve(**{**tree, "points": points, "source": tree.get("source") or str(path)})
        named = isinstance(curve.method, str) and curve.method and isinstance(curve.ranks, int) and curve.ranks > 0
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: {', '.join(unknown) or error} is missing, unknown or of the wrong kind.") from None
    if not (ordered and finite and named):
        raise DataError(f"{path}: its points must be finite numbers that do not fall, and it needs a method and ranks.")
    return curve


def _json(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}).") from None
    if not isinstance(tree, dict):
        raise DataError(f"{path}: must hold a JSON object.")
    return tree
