"""The base of the loggers."""

from __future__ import annotations

import re

from istmpi.record import RunFolder
from istmpi.training.progress import Progress
from istmpi.training.watch import Watch


class Logger(Watch):
    """A watch that tells another program of one run after the other; a run that goes on has the log that it had."""

    name = ""

    def _known_as(self, folder: RunFolder) -> str:
        path = folder.path / f"{self.name}-run"
        return path.read_text(encoding="utf-8").strip() if path.exists() else ""

    def _be_known_as(self, folder: RunFolder, name: str) -> None:
        folder.write(f"{self.name}-run", name + "\n")


def figures(progress: Progress) -> dict[str, float]:
    """The numbers of a record but for the round, in groups: the programs draw names with the same prefix together."""
    numbers = {name: value for name, value in progress.record().items() if not isinstance(value, str)}
    del numbers["round"]
    return {_grouped(name): value for name, value in numbers.items()}


def _grouped(name: str) -> str:
    if re.match(r"rank\d+_", name):
        return f"by_rank/{name}"
    return f"phases/{name}" if name.endswith("_seconds") and name != "round_seconds" else name
