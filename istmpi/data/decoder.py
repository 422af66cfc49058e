"""Reads data in which each file is an example, and folders name its class and split."""

import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np

from istmpi.data.archive import Archive, store
from istmpi.data.class_list import require_listed, require_several
from istmpi.data.dataset import SPLITS, WORDS
from istmpi.data.dense.split import rows_per_block
from istmpi.data.holdout import NO_TEST, TestSplit, held_out
from istmpi.data.writer import Chosen, Progress
from istmpi.errors import DataError

NAMED = 8


@dataclass(frozen=True)
class Note:
    """A line for the user; the command's ``option``, if any, changes the stated decision."""

    text: str
    option: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.option} decides otherwise)" if self.option else self.text


@dataclass
class Notes:
    """Decisions of a reader, and the parts of the source that the reader left out."""

    assumed: list[Note] = field(default_factory=list)
    left_out: list[Note] = field(default_factory=list)
    reading: dict[str, Any] = field(default_factory=dict)
    """Conventions of the source, such as ``delimiter``, as JSON values. Prediction uses the same
    conventions."""

    def assume(self, text: str, option: str = "") -> None:
        self.assumed.append(Note(text, option))

    def leave_out(self, text: str) -> None:
        self.left_out.append(Note(text))


def first_of(names: list[str], count: int = NAMED) -> str:
    return ", ".join(names[:count]) + ", ..." * (len(names) > count)


_MEANING = {word: split for split, words in WORDS.items() for word in words}


class BadFileError(Exception):
    """A file that cannot be decoded; it is skipped unless too many are bad."""


@dataclass(frozen=True, slots=True)
class Example:
    name: str
    label: str
    split: str


class Decoder(ExitStack):
    """Decodes files into examples with bounded memory; a context that closes temporary files at its
    end.

    Decoded rows go to a temporary file in the folder ``scratch``, because a tar file is not sorted
    by name. ``max_bad`` is the fraction of files that may be unreadable.
    """

    def __init__(self, scratch: str | os.PathLike, progress: Progress, max_bad: float):
        self.folder, self.progress, self._max_bad = scratch, progress, max_bad
        self.split = "as in SRC"
        self.notes = Notes()
        super().__init__()

    def run(
        self,
        archive: Archive,
        examples: list[Example],
        decode: Callable[[str, bytes], np.ndarray],
        most_bytes: int,
        classes: tuple[str, ...] | None = None,
    ) -> tuple[dict[str, tuple[Chosen, np.ndarray]], tuple[str, ...], list[str]]:
        """Decode all files; return (examples, class numbers) per split, sorted classes, and
        unreadable files.

        ``classes``: all classes in order; by default those of the examples, of which there must be
        two. ``decode(name, content)`` returns arrays of one shape and type, or raises BadFileError.
        Raises DataError if too many are bad, a file exceeds ``most_bytes``, or train or test is
        empty.
        """
        labels = tuple(sorted({example.label for example in examples}))
        if classes is None:
            require_several(
                labels, archive.path, "Put the files of each class into a folder: CLASS/FILE."
            )
        else:
            require_listed(labels, classes, archive.path)
        classes = classes or labels
        examples = sorted(examples, key=lambda example: example.name)
        row_of = {example.name: row for row, example in enumerate(examples)}
        scratch, row, bad = self.scratch(), np.zeros(1, np.uint8), {}
        for done, (name, content) in enumerate(archive.read(row_of, most_bytes), start=1):
            try:
                row = np.ascontiguousarray(decode(name, content))
                store(scratch, row, row_of[name] * row.nbytes, self.folder)
            except BadFileError as error:
                bad[name] = str(error)
                self.refuse(archive, bad, len(examples))
            self.progress("decoding", done, len(examples))
        os.ftruncate(scratch, len(examples) * row.nbytes)
        codes, splits = {label: code for code, label in enumerate(classes)}, {}
        with os.fdopen(os.dup(scratch), "rb") as file:
            rows = np.memmap(file, row.dtype, "r", shape=(len(examples), *row.shape))
        for split in SPLITS:
            part = [
                example
                for example in examples
                if example.split == split and example.name not in bad
            ]
            if not part and split != "validation":
                raise DataError(
                    f"{archive.path} has no {split} examples; a data set needs at least one. Check "
                    "its layout."
                )
            if part:
                x = Chosen(rows, np.array([row_of[example.name] for example in part]))
                splits[split] = x, np.array([codes[example.label] for example in part], np.int64)
        return splits, classes, sorted(bad)

    def scratch(self) -> int:
        return self.enter_context(tempfile.TemporaryFile(dir=self.folder, buffering=0)).fileno()  # noqa: SIM115

    def refuse(
        self, archive: Archive, bad: dict[str, str], total: int, what: str = "files"
    ) -> None:
        if len(bad) <= self._max_bad * total:
            return
        names = sorted(bad)[:3]
        raise DataError(
            f"{archive.path}: {len(bad)} of {total} {what} cannot be read, more than "
            f"{self._max_bad:.1%}, "
            f"among them {', '.join(names)} ({bad[names[0]]}). Repair them, or raise --max-bad."
        )


Block = tuple[Sequence[str | int] | None, np.ndarray, Sequence[str] | None]
"""Names of examples (None: numbers), x [b, features], not normalised, and true classes (None:
unknown)."""


@dataclass(frozen=True)
class Request:
    """Choices of `istmpi predict`, for a network whose training data had examples of this
    ``shape``."""

    shape: tuple[int, ...]
    split: str = "test"
    resize: bool = False
    """True to resize images to ``shape``."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    """The training data's conventions; ``header`` and ``delimiter`` override them."""
    skipped: Callable[[str, str], None] = lambda name, reason: None
    """Called with an unreadable file's name and the reason."""
    label: str | None = None
    """A table's column to leave out."""
    header: bool | None = None
    delimiter: str | None = None
    notes: Notes = field(default_factory=Notes)
    test: TestSplit = NO_TEST


def decoded(
    path: Path,
    request: Request,
    endings: tuple[str, ...],
    decode: Callable[[str, bytes], np.ndarray],
    most_bytes: int,
    context: Callable[[], AbstractContextManager] = nullcontext,
) -> Iterator[Block]:
    """Yield the decoded files of ``path`` that have one of the endings; ``context`` is around the
    work on a block."""
    archive = Archive(path)
    names = [name for name in archive.names if name.lower().endswith(endings)]
    if not names:
        raise DataError(
            f"{path} holds no {' '.join(endings)}; the network was trained on such files."
        )
    contents, step = archive.read(names, most_bytes), rows_per_block(prod(request.shape))
    while part := list(islice(contents, step)):
        rows: dict[str, np.ndarray] = {}
        with context():
            for name, content in part:
                try:
                    rows[name] = decode(name, content).reshape(-1).astype(np.float32)
                except BadFileError as error:
                    request.skipped(name, str(error))
        if rows:
            yield list(rows), np.stack(list(rows.values())), None


def with_holdout(examples: list[Example]) -> list[Example]:
    examples = sorted(examples, key=lambda example: example.name)
    _, codes = np.unique([example.label for example in examples], return_inverse=True)
    test = held_out(len(examples), codes)
    return [
        replace(example, split="test" if chosen else "train")
        for example, chosen in zip(examples, test)
    ]


def split_of(name: str) -> str:
    return _MEANING.get(name.lower(), "")


def common_folder(names: Collection[str], splits: bool = True) -> str:
    """Return the folder that holds all class folders or, with ``splits``, split folders: "" or a
    path ending in "/"."""
    paths, above = [name.split("/")[:-1] for name in names], []
    while True:
        below = [path[len(above) :] for path in paths if len(path) > len(above)]
        outermost = {path[0] for path in below}
        if len(outermost) != 1 or (splits and split_of(*outermost)) or max(map(len, below)) == 1:
            return "".join(f"{folder}/" for folder in above)
        above += outermost


def class_folders(
    archive: Archive, endings: tuple[str, ...], notes: Notes, splits: bool = True
) -> list[Example]:
    """Return the files with the given endings as examples; folders name the classes, as in
    torchvision's ImageFolder.

    Below the common folder, a path is SPLIT/CLASS/... or CLASS/..., whose split is ""; without
    ``splits`` it is CLASS/... Files in no folder below the common folder are skipped. Raises
    DataError for other paths.
    """
    names = [name for name in archive.names if name.lower().endswith(endings)]
    common = common_folder(names, splits)
    paths = {
        name: name.removeprefix(common).split("/")[:-1] for name in names if name.startswith(common)
    }
    paths = {name: path for name, path in paths.items() if path}
    deep = {path[0] for path in paths.values() if len(path) > 1}
    in_splits = splits and (
        any(map(split_of, deep)) or all(split_of(path[0]) for path in paths.values())
    )
    examples = []
    for name, path in paths.items():
        outer, split, folders = (
            path[0],
            split_of(path[0]) if in_splits else "",
            path[1:] if in_splits else path,
        )
        if in_splits and split and not folders:
            raise DataError(
                f"{archive.path}: {name} is not in a class folder; it must be {outer}/CLASS/FILE."
            )
        if in_splits and not split:
            raise DataError(
                f"{archive.path} has train/ or test/, but {name} is in neither. Move it into one "
                "or remove it."
            )
        inner = folders[1:] if in_splits else folders
        if named := [folder for folder in inner if len(folders) > 1 and split_of(folder)]:
            raise DataError(
                f"{archive.path}: {name} has a folder {named[0]}/, but a split is "
                f"{named[0]}/CLASS/FILE"
                f"{'' if splits else ', unless a list names its files'}. Move or rename it."
            )
        examples.append(Example(name, intern(folders[0]), split))
    if splits and not in_splits:
        _require_no_splits({example.label for example in examples}, archive)
    if common and not in_splits:
        notes.assume(f"classes are the folders in {common}")
    return examples


def _require_no_splits(classes: Collection[str], archive: Archive) -> None:
    """Raise DataError if class folders seem to be splits, such as seg_train and seg_test.

    They do if each name has a word for a split, or if two names differ in such a word alone.
    """
    stems: dict[tuple[str, ...], list[str]] = {}
    named = []
    for name in sorted(classes):
        words = re.findall(r"[a-z]+|[0-9]+", name.lower())
        stem = tuple(word for word in words if not split_of(word))
        stems.setdefault(stem, []).append(name)
        if len(stem) < len(words):
            named.append(name)
    suspects = named
    if len(named) < len(classes):
        suspects = [name for alike in stems.values() if len(alike) > 1 for name in alike]
        suspects = [name for name in suspects if name in named]
    if suspects and len(classes) > 1:
        raise DataError(
            f"{archive.path}: the folders {first_of(suspects)} are named like splits. Rename them "
            "train, test and validation, with a folder for each class inside."
        )


def checked_splits(
    archive: Archive, examples: list[Example], notes: Notes, classes: Collection[str] = ()
) -> list[Example]:
    """Return the examples. Without test examples, validation examples become test examples.

    Raises DataError for a class that no training example has, and that ``classes`` lacks.
    """
    if {example.split for example in examples} == {"train", "validation"}:
        notes.assume("validation examples are used for testing: there are no others")
        examples = [
            replace(e, split="test" if e.split == "validation" else e.split) for e in examples
        ]
    trained = {example.label for example in examples if example.split == "train"} | {*classes}
    unknown = next((example for example in examples if example.label not in trained), None)
    if trained and unknown:
        raise DataError(
            f"{archive.path}: {unknown.name} is of class {unknown.label}, which train/ lacks. "
            "Arrange files "
            "as SPLIT/CLASS/FILE, or remove it; lists of labels (Tiny ImageNet's "
            "val_annotations.txt) are "
            "not read."
        )
    return examples
