"""The parts of a program's job that its rounds use."""

from collections.abc import Generator, Mapping
from typing import Any, Protocol

from istmpi.methods.local_training import LocalTraining
from istmpi.program.autocast import Autocast
from istmpi.program.epochs import Measured, Passes
from istmpi.program.guard import Guard
from istmpi.program.kept import Stateful
from istmpi.program.streams import Streams


class Attempts(Measured, Protocol):
    """The part of a training, or of a member's loop, that a round uses."""

    rounds_done: int

    @property
    def method(self) -> LocalTraining: ...
    def attempt(self) -> Generator[int, None, bool]: ...


class Job(Protocol):
    """The part of `istmpi.Distributed` that a round uses."""

    @property
    def streams(self) -> Streams: ...
    @property
    def guard(self) -> Guard: ...

    @property
    def autocast(self) -> Autocast: ...

    has_gradients: bool
    passes: Passes | None

    def note_once(self, message: str) -> None: ...
    def follow(self, stateful: Stateful) -> None: ...
    def restore(self, states: list[Any], kept: Mapping[str, Any]) -> None: ...
