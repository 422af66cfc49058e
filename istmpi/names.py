"""What networks are called in a run: a word, or FILE.py:Class or package.module:Class for one of the user's own."""

from typing import Any


def is_own(name: Any) -> bool:
    """Whether the name of a network is that of a class of the user's own."""
    return isinstance(name, str) and ":" in name


def class_of(name: Any) -> str:
    """The class that the name of a user's own network names, wherever it lies; empty for a network that ships."""
    return name.rpartition(":")[2] if is_own(name) else ""
