"""What a run leaves behind of itself: where the time went, and a line of metrics for every round."""

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from istmpi.errors import ConfigError, DataError, OutputError


class Clock:
    """Seconds by phase of this rank: ``with clock("pull"): ...``. A phase inside another is taken out of it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self._lap()
        self._running.append(phase)
        try:
            yield
        finally:
            self._lap()
            self._running.pop()

    def _lap(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


class RunFolder:
    """The folder of one run: ``run.toml``, ``metrics.jsonl``, ``summary.json`` and the plots."""

    def __init__(self, path: Path):
        self.path = path

    @staticmethod
    def create(wanted: str, name: str) -> "RunFolder":
        """A new folder: the wanted one, or the first free of runs/NAME, runs/NAME-2, ...

        Raises ConfigError when it is not empty or cannot be made: nothing of an earlier run is ever overwritten.
        """
        path = Path(wanted) if wanted else _free(Path("runs") / name)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise ConfigError(f"--out {path}: the folder is not empty. Name another or remove it.")
            (path / "metrics.jsonl").touch()
        except OSError as error:
            raise ConfigError(f"--out {path}: cannot be written ({error.strerror}). Name another folder.") from None
        return RunFolder(path)

    def write(self, name: str, text: str) -> None:
        """A whole file."""
        self._open(name, "w", text)

    def append(self, metrics: Mapping[str, Any]) -> None:
        """One more line of metrics.jsonl."""
        self._open("metrics.jsonl", "a", json.dumps(metrics) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: not the metrics of a run ({error}).") from None

    def _open(self, name: str, mode: str, text: str) -> None:
        try:
            with open(self.path / name, mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise OutputError(f"{self.path / name}: cannot be written ({error.strerror}).") from None


def _free(path: Path) -> Path:
    """The path itself, or with the first number behind it that is not taken."""
    number = 1
    candidate = path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
