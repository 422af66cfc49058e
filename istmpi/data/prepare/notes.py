"""The record of how other people's files were read: what a reader assumed, and what it left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Note:
    """One line for the user: ``option`` is the command's option that decides otherwise, empty where there is none."""

    text: str
    option: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.option} decides otherwise)" if self.option else self.text


@dataclass
class Notes:
    """All notes of one preparation, and the conventions that a later reading of such files must share."""

    assumed: list[Note] = field(default_factory=list)
    """What the files do not say and the reader decided, such as: the first line is a header."""
    left_out: list[Note] = field(default_factory=list)
    """Files, rows and columns that are not in the prepared file, with their count."""
    reading: dict[str, Any] = field(default_factory=dict)
    """Conventions by name, of JSON's types. The prepared file and ``network.h5`` keep them, and prediction reads its
    input by them instead of deciding again."""

    def assume(self, text: str, option: str = "") -> None:
        """Record a decision that the files themselves do not settle."""
        self.assumed.append(Note(text, option))

    def leave_out(self, text: str, option: str = "") -> None:
        """Record what is not in the prepared file; the text begins with a count."""
        self.left_out.append(Note(text, option))
