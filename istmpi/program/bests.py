"""The best scores of a program's evaluations, which save the best network and end the run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from istmpi.code import shown
from istmpi.errors import ConfigError
from istmpi.record import write_own_key
from istmpi.tasks import LOWER, higher_is_better
from istmpi.training.best import Best

TORCH = (".pt", ".pth")
"""The suffixes of files for a state dict; others are those of HDF5."""


class Bests:
    """The best score of each name, of all rounds of the run."""

    def __init__(self) -> None:
        self._bests: dict[str, Best] = {}
        self._lines: Sequence[Mapping[str, Any]] = ()

    def restore(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Begin with the scores in the ``lines`` of metrics.jsonl."""
        self._lines = lines
        self._bests = {}

    def find(self) -> Best | None:
        """Return the best of the run's own score in the lines of `restore`; None without a
        score."""
        scored = [line for line in self._lines if line.get("score") is not None]
        if not scored:
            return None
        best = Best(higher_is_better(scored[-1]["score_name"]), 0)
        for line in scored:
            best.take(line["round"], line["score"])
        return best

    def take(self, name: str, round: int, score: float, higher: bool, patience: int) -> Best:
        """Take a round's score, and return the best so far."""
        if name not in self._bests:
            best = Best(higher, patience)
            for line in self._lines:
                earlier = _read_score(line, name)
                if earlier is not None:
                    best.take(line["round"], earlier)
            self._bests[name] = best
        best = self._bests[name]
        best.take(round, score)
        return best


def require_best(path: str | Path, patience: Any) -> None:
    """Raise ConfigError for a wrong ``best`` or ``patience`` of `Distributed.evaluate`."""
    if path and Path(path).suffix not in (".h5", *TORCH):
        raise ConfigError(
            f"evaluate: best = {str(path)!r} must end in .h5, or in .pt for a state dict."
        )
    if not isinstance(patience, int) or patience < 0:
        raise ConfigError(
            f"evaluate: patience = {shown(patience)} must be a whole number of at least 0."
        )


def describe_end(best: Best, name: str) -> str:
    """Return why a run ends, in words."""
    return (
        f"no better {name} in {best.without_better} evaluations: the run ends. The best, "
        f"{best.score:.4g}, was after round {best.round}."
    )


def _read_score(line: Mapping[str, Any], name: str) -> float | None:
    """Return the score ``name`` of a line of metrics.jsonl; None if it has none."""
    if line.get("score_name", "").removesuffix(LOWER) == name:
        return line.get("score")
    return line.get(write_own_key(name))
