"""The names of a store's tensors: a parameter's own name, or that of a slot beside it."""

from __future__ import annotations

from collections.abc import Iterable

VELOCITY = "velocity"
"""The kind of slot that has an outer step's momentum."""


class Slot(str):
    """The name of a tensor beside a parameter, with its axes, such as momentum; as text PARAMETER/SLOT (`named`)."""

    parameter: str
    kind: str
    """The slot's name beside any parameter: ``momentum_buffer``."""

    def __new__(cls, parameter: str, kind: str) -> Slot:
        self = super().__new__(cls, f"{parameter}/{kind}")
        self.parameter, self.kind = parameter, kind
        return self

    def __getnewargs__(self) -> tuple[str, str]:
        return self.parameter, self.kind


def named(text: str) -> str | Slot:
    """Parse a name from a file: a parameter's, or a slot's."""
    parameter, slash, kind = text.partition("/")
    return Slot(parameter, kind) if slash else text


def parameter_of(name: str) -> str:
    """The parameter to which a name belongs: itself, or that of the slot."""
    return name.parameter if isinstance(name, Slot) else name


def weights_among(names: Iterable[str]) -> list[str]:
    return [name for name in names if not isinstance(name, Slot)]


def kinds_of(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.kind for name in names if isinstance(name, Slot)))
