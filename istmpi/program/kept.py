"""The values that a program keeps for the loop of its resumed run, and its objects' states."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

import torch

from istmpi.comm import Communicator
from istmpi.errors import ConfigError
from istmpi.program.rank_files import fetch_files, name_file, read_rank_file, save_rank_file

FOLDER = "kept"
PLAIN = bool | int | float | str | bytes | torch.Tensor | None


class Stateful(Protocol):
    """An object of the program whose state goes on in a resumed run, such as a GradScaler."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...


class Kept:
    """The values of this rank, by name, and the states of objects that its loop uses. They are
    saved with each checkpoint."""

    def __init__(self, communicator: Communicator, note: Callable[[str], None]):
        self._communicator = communicator
        self._note = note
        self.values: dict[str, Any] = {}
        self._followed: list[Stateful] = []
        """The objects, in the order in which the loop has used them first."""
        self._states: list[dict[str, Any]] = []
        """The states that a resumed run has loaded for objects in this order."""
        self._begun: dict[str, Any] = {}
        """Values and states when the current round began."""

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

    def follow(self, stateful: Stateful) -> None:
        """Keep the state of an object from its first use on, which gets its state in a resumed
        run."""
        if any(stateful is other for other in self._followed):
            return
        place = len(self._followed)
        self._followed.append(stateful)
        # A scaler that is disabled has no state.
        if place < len(self._states) and self._states[place]:
            stateful.load_state_dict(self._states[place])

    def collect(self) -> dict[str, Any]:
        """Return all that is to save: the values, and the states of objects."""
        states = [stateful.state_dict() for stateful in self._followed]
        return {"values": self.values, "states": states + self._states[len(states) :]}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take what `collect` returned, or nothing if it is missing."""
        self.values = dict(saved.get("values", {}))
        self._states = list(saved.get("states", []))
        self._followed = []

    def begin_round(self) -> None:
        """Copy what is to save after a dropped round."""
        # The program may change a value in place.
        self._begun = deepcopy(self.collect())

    def save(self, folder: Path, round: int, kept: int, dropped: bool = False) -> None:
        """Save values and states, if any, after a round, or from before a ``dropped`` round."""
        collected = self.collect()
        if dropped:
            collected = self._begun
        if any(collected.values()):
            rank = self._communicator.rank
            saved = {"ranks": self._communicator.size, **collected}
            save_rank_file(folder / FOLDER, round, rank, saved, kept)

    def load(self, folder: Path, round: int, resumed: str) -> None:
        """Load what ranks saved after a round; on another number of ranks, each gets what rank 0
        saved. Collective. Raises DataError if it is unreadable.

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
            self.restore(saved)
        elif any(counts):
            self.restore(communicator.broadcast_from_root(saved))
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
