"""Keeps a run's record in its folder: a line of metrics for every round, and a summary."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from istmpi import lock
from istmpi.environment import read
from istmpi.errors import ConfigError, DataError
from istmpi.files import appearing, append, preparing, require_file, require_files, writing
from istmpi.foreign import METRICS_BYTES, Fields, content, reading
from istmpi.outputs import SCORED, read_scores

METRICS = "metrics.jsonl"
SETTINGS = "run.toml"
SUMMARY = "summary.json"
FAILURE = "failure.json"
COMPARISON = "comparison.json"
"""The file in a comparison's folder with the number of ranks."""
TUNING = "tuning"
"""The folder in a comparison's folder with the trials that chose settings; with .json, their
outcomes."""
_FURTHER = ("balanced accuracy", "macro-F1", "AUC", "RMSE", "R2")
_TOP_K = re.compile(r"top_(\d+)_accuracy")
_ENTRY = re.compile(
    "time|round|local_steps|examples|seconds|bytes|loss|learning_rate|ranks|resumed_from|"
    "score_name|(validation_)?(score|loss|examples)|test_(loss|examples)|form|bits_per_byte|"
    rf".+_(seconds|bytes|per_second)|rank\d+_share|{SCORED}_score"
)
"""The entries of a line of metrics.jsonl that no score of a user's code replaces."""
CURE = "Repair the file, or remove the run's folder."
JOB = "job"
"""The file in a run's folder in which the job script describes the machine. It may exist before the
run."""


def known(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the items with values other than None and NaN.

    It is a ``dict_factory`` for `dataclasses.asdict`.
    """
    return {name: value for name, value in items if value is not None and value == value}


def write_key(name: str) -> str:
    """Return the key in metrics.jsonl of a further score."""
    return name.lower().replace(" ", "_").replace("-", "_")


def write_own_key(name: str) -> str:
    """Return the key in metrics.jsonl of a score of a user's code: score_loss if it is named as
    another entry, such as loss."""
    if _ENTRY.fullmatch(name):
        return f"score_{name}"
    return name


def list_own_scores(summary: Fields | None) -> dict[str, str]:
    """Return the names of the further scores that a user's code has computed, and their keys."""
    # A line of metrics may have any names.
    place = summary
    for key in ("last", "score", "more"):
        if place is None or key not in place:
            return {}
        place = place.inner(key)
    return {name: write_own_key(name) for name in place or ()}


def has_direction(name: str) -> bool:
    """Return True for a further score of istmpi, of which it is known if higher is better."""
    return name in _FURTHER or name.startswith("top-")


def read_further(line: Fields) -> dict[str, float]:
    """Return the further scores in a line of metrics.jsonl by their names, such as macro-F1."""
    names = {write_key(name): name for name in _FURTHER}
    further = {}
    for key in line:
        top_k = _TOP_K.fullmatch(key)
        if top_k:
            further[f"top-{top_k[1]} accuracy"] = line.score(key)
        elif key in names:
            further[names[key]] = line.score(key)
    return further


class RunFolder:
    """The folder of one run: ``run.toml``, ``metrics.jsonl``, ``summary.json`` and others."""

    def __init__(self, path: Path):
        self.path = path
        self.pending: list[str] = []
        """Lines that could not be written yet."""

    @staticmethod
    def choose(given: str, name: str, resume: str = "") -> "RunFolder":
        """Return a run's folder without creating it.

        It is ``given``, or the first free of runs/NAME, runs/NAME-2, ... With ``resume`` the folder
        may be an earlier run's: ``given``, runs/NAME for ``auto``, or the folder of the checkpoint
        ``resume``. Raises DataError if the checkpoint does not exist. Raises ConfigError as
        `require_usable` does and, without ``resume``, if another run uses the folder.
        """
        if resume not in ("", "auto") and not Path(resume).exists():
            raise DataError(f"--resume {resume} does not exist.")
        if given or resume == "auto":
            path = home(given, name)
        elif resume:
            path = find_run(Path(resume))
        else:
            path = _find_free(home(given, name))
        folder = RunFolder(path)
        if not resume:  # with ``resume``, the lock waits for a run that is about to end
            with suppress(OSError):  # of a path that can be no folder, which is refused below
                require_file(path / lock.FILE)
            lock.require_unheld(path)
        folder.require_usable(bool(resume))
        return folder

    def require_usable(self, resume: bool) -> None:
        """Raise ConfigError if the folder is not empty.

        With ``resume``, raise it only if the folder holds files but no run. Files of the lock and
        the job script do not count. A pipe, or a folder in a file's place, is always refused.
        """
        path = self.path
        with preparing(path):
            require_files(path)
            used = path.exists() and any(
                not _belongs_to_a_run(entry.name) for entry in path.iterdir()
            )
            if used and not (resume and self._holds_a_run()):
                what = " and not a run's folder" if resume else ""
                cure = ""
                if (path / METRICS).is_file():
                    cure = ", or --resume auto to continue it"
                raise ConfigError(
                    f"--out {path}: the folder is not empty{what}. Give another, or remove "
                    f"it{cure}."
                )

    def _holds_a_run(self) -> bool:
        """Return True if the folder has the files of a run; the metrics may be lost."""
        saved = (self.path / "checkpoints").is_dir() and (self.path / SETTINGS).is_file()
        return saved or (self.path / METRICS).is_file()

    def make(self) -> None:
        with preparing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            append(self.path / METRICS, b"")

    def unmake(self) -> None:
        """Remove what a run that was refused has made, where it is empty."""
        with suppress(OSError):
            (self.path / "checkpoints").rmdir()
        metrics = self.path / METRICS
        with suppress(OSError):
            if metrics.stat().st_size == 0:
                metrics.unlink()

    def keep_metrics(self, rounds: int) -> None:
        """Keep the lines of the first ``rounds`` rounds; a resumed run repeats the others."""
        self._write_metrics(line for line in self.metrics() if line["round"] <= rounds)

    def begin_metrics(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Begin a folder with the lines of the run that it resumes, unless it has lines."""
        if not self.metrics():
            self._write_metrics(lines)

    def amend(self, fields: Mapping[str, Any]) -> None:
        """Add to the last line of metrics.jsonl what was not known when it was written."""
        lines = self.metrics()
        if lines:
            lines[-1].update(fields)
        self._write_metrics(lines)

    def _write_metrics(self, lines: Iterable[Mapping[str, Any]]) -> None:
        self.write(METRICS, "".join(json.dumps(line) + "\n" for line in lines))

    def forget(self, name: str) -> None:
        with writing(self.path / name):
            (self.path / name).unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        with appearing(self.path / name, follow=False) as file:
            file.write(text.encode())

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl.

        Raises OutputError if it cannot be written; the next call writes it first.
        """
        self.pending.append(json.dumps(metrics) + "\n")
        # One write for all lines, which a kill leaves whole or without the end.
        append(self.path / METRICS, "".join(self.pending).encode())
        self.pending.clear()

    def metrics(self) -> list[dict[str, Any]]:
        """Read all lines of metrics.jsonl, except half a line that a killed run left."""
        return [line.tree for line in self.lines()]

    def lines(self, name: str = METRICS) -> list[Fields]:
        """Read a file's lines, except half a last line.

        Raises DataError if the file is unreadable or a line has no round.
        """
        subject = f"{self.path / name} does not hold the metrics of a run"
        with reading(subject, CURE, OSError, ValueError):
            texts = content(self.path / name, METRICS_BYTES).split(b"\n")[:-1]
        lines = [
            Fields.parsed(text, f"{subject}, line {number}", CURE)
            for number, text in enumerate(texts, 1)
        ]
        for line in lines:
            line.whole("round")  # raises DataError if it is missing
            _flatten(line.tree)
        return lines

    def has_summary(self, note: Callable[[str], None], rounds: int, loss: float) -> bool:
        """Return True if the folder has the summary of a run that ended after so many rounds, with
        this training loss.

        ``note`` gets the reason why a summary is none of this run.
        """
        path = self.path / SUMMARY
        if not path.is_file():
            return False
        again = "It is written again."
        try:
            summary = Fields.read(path, path, again)
            last = summary.value("last")
            if "ended" in summary:  # summaries of earlier versions lack it
                summary.text("ended")
        except DataError as error:
            note(str(error))
            return False
        ended = known({"round": rounds, "loss": loss}.items())
        if isinstance(last, dict) and ended.items() <= last.items():
            return True
        note(f"{path} is not of round {rounds} with the loss {loss}, where this run ended. {again}")
        return False

    def summary(self) -> Fields:
        path = self.path / SUMMARY
        return Fields.read(path, f"{path} does not hold the summary of a run", CURE)


def home(given: str, name: str) -> Path:
    """Return a run's folder: ``given``, else NAME in the folder of runs."""
    if given:
        return Path(given)
    return Path(read("ISTMPI_RUNS")) / name


def find_run(path: Path) -> Path:
    """Return the run's folder of a file in it or in its checkpoints, or of a folder."""
    if not path.is_dir():
        path = path.parent
    if path.name == "checkpoints":
        return path.parent
    return path


def _belongs_to_a_run(name: str) -> bool:
    return name in (JOB, lock.FILE) or name.startswith(f".{lock.FILE}.")


def _find_free(path: Path) -> Path:
    free = path
    numbers = count(2)  # runs/NAME, runs/NAME-2, runs/NAME-3, ...
    while not _is_free(free):
        free = path.with_name(f"{path.name}-{next(numbers)}")
    return free


def _is_free(path: Path) -> bool:
    """Return True if there is no such folder, or if it has only what `istmpi-run` recorded there
    before the ranks started."""
    with suppress(OSError):
        return {entry.name for entry in path.iterdir()} == {JOB}
    return not path.exists()


def _flatten(line: dict[str, Any]) -> None:
    """Convert a line of an earlier istmpi, whose score was an object, to the present form."""
    score = line.get("score")
    if not isinstance(score, dict):
        return
    line["score"] = score.get("score")
    # None of these replaces a value that the line has already.
    values = {
        "test_loss": score.get("loss"),
        "test_examples": score.get("examples"),
        "bits_per_byte": score.get("bits_per_byte"),
    }
    for output, scored in read_scores(score).items():
        values[f"{output}_score"] = scored
    more = score.get("more")
    if isinstance(more, dict):
        values |= more
    for name, value in values.items():
        if value is not None:
            line.setdefault(name, value)
