"""The names of a store's tensors, which are parameters and their slots, such as the momentum."""

from __future__ import annotations

from collections.abc import Iterable

VELOCITY = "velocity"
"""The kind of the slot for the momentum of the outer step."""


class Slot(str):
    """The name of a tensor that belongs to a parameter and has its axes, such as momentum; text
    PARAMETER/KIND."""

    parameter: str
    kind: str
    """The slot's name without its parameter's, such as ``momentum_buffer``."""

    def __new__(cls, parameter: str, kind: str) -> Slot:
        self = super().__new__(cls, f"{parameter}/{kind}")
        self.parameter = parameter
        self.kind = kind
        return self

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override] # str has one argument
        return self.parameter, self.kind


def named(text: str) -> str | Slot:
    """Parse a tensor's name from a file: a parameter's name, or a `Slot`."""
    parameter, slash, kind = text.partition("/")
    if not slash:
        return text
    return Slot(parameter, kind)


def strip_slot(name: str) -> str:
    if isinstance(name, Slot):
        return name.parameter
    return name


def select_weights(names: Iterable[str]) -> list[str]:
    return [name for name in names if not isinstance(name, Slot)]


def list_kinds(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.kind for name in names if isinstance(name, Slot)))
