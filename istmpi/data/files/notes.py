"""The record of how other people's files were read: what a reader assumed, and what it left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from istmpi.units import counted

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
    """The notes of a preparation, and the conventions that a later reading of such files must share."""

    assumed: list[Note] = field(default_factory=list)
    """Decisions that the files do not settle, such as: the first line is a header."""
    left_out: list[Note] = field(default_factory=list)
    """Files, rows and columns that are not in the prepared file."""
    reading: dict[str, Any] = field(default_factory=dict)
    """Conventions by name, of JSON's types, by which prediction reads its input."""

    def assume(self, text: str, option: str = "") -> None:
        self.assumed.append(Note(text, option))

    def leave_out(self, text: str, option: str = "") -> None:
        self.left_out.append(Note(text, option))


def not_read(names: Collection[str], read: Collection[str]) -> Iterator[str]:
    """Yield lines on the files that were not read: by endings, and folders of which none was."""
    endings, folders = defaultdict(list), set()
    opened = {name.rpartition("/")[0] for name in read}
    opened = {above for folder in opened for above in PurePosixPath(folder, "file").parents}
    for name in names:
        if name not in read:
            path = PurePosixPath(name)
            endings[path.suffix.lower() or "without an ending"].append(name)
            folders.update([folder for folder in path.parents if folder not in opened][-1:])
    if endings:
        by_count = sorted(endings.items(), key=lambda item: (-len(item[1]), item[0]))
        shown = _first([f"{len(files):,} {ending} ({files[0]})" for ending, files in by_count])
        yield f"{counted(sum(map(len, endings.values())), 'file')} not read: {shown}"
    if folders:
        yield f"{counted(len(folders), 'folder')} of which no file is read: {_first(sorted(map(str, folders)))}"


def first_of(names: list[str], count: int = NAMED) -> str:
    return ", ".join(names[:count]) + ", ..." * (len(names) > count)


def _first(parts: list[str]) -> str:
    more = len(parts) - NAMED
    return ", ".join(parts[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
