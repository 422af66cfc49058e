"""The values that a program keeps for the loop of its resumed run."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from istmpi.comm import Communicator
from istmpi.errors import ConfigError
from istmpi.program.rank_files import fetch_files, name_file, read_rank_file, save_rank_file

FOLDER = "kept"
PLAIN = bool | int | float | str | bytes | torch.Tensor | None


class Kept:
    """The values of this rank, by name. They are saved with each checkpoint."""

    def __init__(self, communicator: Communicator, note: Callable[[str], None]):
        self._communicator = communicator
        self._note = note
        self.values: dict[str, Any] = {}
        self._begun: dict[str, Any] = {}
        """The values when the current round began."""

    def update(self, values: Mapping[str, Any]) -> None:
        """Keep ``values``. Raises ConfigError for a value that a file cannot hold."""
        for name, value in values.items():
            fault = _find_fault(value)
            if fault:
                raise ConfigError(
                    f"keep: {name} has a {fault}; only tensors, numbers, text, lists, tuples and "
                    "dicts can be kept. Keep its state_dict()."
                )
        self.values.update(values)

    def begin_round(self) -> None:
        """Copy the values for `save` after a dropped round."""
        # The program may change a value in place.
        self._begun = deepcopy(self.values)

    def save(self, folder: Path, round: int, kept: int, dropped: bool = False) -> None:
        """Save the values, if any, after a round, or from before a ``dropped`` round."""
        values = self.values
        if dropped:
            values = self._begun
        if values:
            rank = self._communicator.rank
            saved = {"ranks": self._communicator.size, "values": values}
            save_rank_file(folder / FOLDER, round, rank, saved, kept)

    def load(self, folder: Path, round: int, resumed: str) -> None:
        """Load the values that ranks saved after a round; on another number of ranks, each gets
        those of rank 0. Collective. Raises DataError if they are unreadable.

        ``resumed``: the run or checkpoint to resume, if it is in another folder.
        """
        if not round:
            return
        communicator = self._communicator
        name = name_file(round, communicator.rank)
        saved: dict[str, Any] = {}
        with communicator.agreed():
            if resumed:
                fetch_files(folder / FOLDER, [name], resumed)
            path = folder / FOLDER / name
            if path.is_file():
                saved = read_rank_file(path, "the program's values")
        counts = communicator.allgather(saved.get("ranks"))
        if set(counts) == {communicator.size}:
            self.values = saved["values"]
        elif any(counts):
            self.values = communicator.broadcast_from_root(saved.get("values", {}))
            self._note(
                f"kept values: they are of {max(filter(None, counts))} ranks, and this job has "
                f"{communicator.size}, or some are missing: every rank has those of rank 0."
            )


def _find_fault(value: Any) -> str:
    """Return the name of the first class in a value that a file cannot hold; empty if there is
    none."""
    if isinstance(value, dict):
        return next(filter(None, map(_find_fault, [*value.keys(), *value.values()])), "")
    if type(value) in (list, tuple):
        return next(filter(None, map(_find_fault, value)), "")
    if isinstance(value, PLAIN):
        return ""
    return type(value).__name__
