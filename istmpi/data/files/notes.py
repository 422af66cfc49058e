"""The record of what a reader assumed, and what it left out."""

from dataclasses import dataclass, field
from typing import Any

NAMED = 8


@dataclass(frozen=True)
class Note:
    """A line for the user: ``option`` is the command's option that decides otherwise."""

    text: str
    option: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.option} decides otherwise)" if self.option else self.text


@dataclass
class Notes:
    """The notes of a preparation."""

    assumed: list[Note] = field(default_factory=list)
    left_out: list[Note] = field(default_factory=list)
    reading: dict[str, Any] = field(default_factory=dict)
    """Conventions by name, of JSON's types, that prediction shares."""

    def assume(self, text: str, option: str = "") -> None:
        self.assumed.append(Note(text, option))

    def leave_out(self, text: str, option: str = "") -> None:
        self.left_out.append(Note(text, option))


def first_of(names: list[str], count: int = NAMED) -> str:
    return ", ".join(names[:count]) + ", ..." * (len(names) > count)
