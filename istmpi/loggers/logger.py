"""What the loggers have in common."""

from __future__ import annotations

import re

from istmpi.checkpoint.saver import Saver
from istmpi.record import RunFolder
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.watch import Watch


class Logger(Watch):
    """Tells a program of one run after the other: `begin`, `log` for each round, `end`."""

    name = ""

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        self.begin(training, folder)

    def progressed(self, progress: Progress) -> None:
        self.log(progress)

    def begin(self, training: Training, folder: RunFolder) -> None:
        """A run begins, or goes on after ``training.rounds_done`` rounds: with the log that it has in its folder."""

    def log(self, progress: Progress) -> None:
        """Tell a round's record."""

    def _known_as(self, folder: RunFolder) -> str:
        path = folder.path / f"{self.name}-run"
        return path.read_text(encoding="utf-8").strip() if path.exists() else ""

    def _be_known_as(self, folder: RunFolder, name: str) -> None:
        folder.write(f"{self.name}-run", name + "\n")


def figures(progress: Progress) -> dict[str, float]:
    """The numbers of a record but for the round; grouped by what stands before a slash, as such programs draw them."""
    record = progress.record()
    return {_grouped(name): value for name, value in record.items() if name != "round" and not isinstance(value, str)}


def _grouped(name: str) -> str:
    if re.match(r"rank\d+_", name):
        return f"by_rank/{name}"
    if name.endswith("_seconds") and name != "round_seconds":
        return f"phases/{name}"
    return name
