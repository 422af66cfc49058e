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
from typing import Any, NamedTuple

import numpy as np

from istmpi.data.archive import Archive, store
from istmpi.data.class_list import require_listed, require_several
from istmpi.data.dataset import SPLITS, WORDS
from istmpi.data.dense.split import rows_per_block
from istmpi.data.holdout import NO_TEST, TestSplit, draw_test
from istmpi.data.writer import Chosen, Progress
from istmpi.errors import DataError

NAMED = 8


@dataclass(frozen=True)
class Note:
    """A decision that `istmpi prepare` made, and the ``option`` that changes it, if any."""

    text: str
    option: str = ""

    def __str__(self) -> str:
        if not self.option:
            return self.text
        return f"{self.text} (change with {self.option})"


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


def list_first(names: list[str], count: int = NAMED) -> str:
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
        self.folder = Path(scratch)
        self.progress = progress
        self._max_bad = max_bad
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
            cure = "Put the files of each class into a folder: CLASS/FILE."
            require_several(labels, archive.path, cure)
            classes = labels
        require_listed(labels, classes, archive.path)
        codes = {label: code for code, label in enumerate(classes)}
        examples = sorted(examples, key=lambda example: example.name)
        rows, bad = self._decode(archive, examples, decode, most_bytes)
        # Rows of unreadable files stay in the scratch file; no split chooses them.
        good = [place for place, example in enumerate(examples) if example.name not in bad]
        splits = {}
        for split in SPLITS:
            places = [place for place in good if examples[place].split == split]
            if not places and split != "validation":
                raise DataError(
                    f"{archive.path} has no {split} examples; a data set needs at least one. Check "
                    "its layout."
                )
            if places:
                y = np.array([codes[examples[place].label] for place in places], np.int64)
                splits[split] = (Chosen(rows, np.array(places)), y)
        return splits, classes, sorted(bad)

    def _decode(
        self,
        archive: Archive,
        examples: list[Example],
        decode: Callable[[str, bytes], np.ndarray],
        most_bytes: int,
    ) -> tuple[np.ndarray, dict[str, str]]:
        """Decode all files into a temporary file; return its map, with a row for each example, and
        the reasons of unreadable files by their names."""
        places = {example.name: place for place, example in enumerate(examples)}
        scratch = self.open_scratch()
        row = np.zeros(1, np.uint8)
        bad: dict[str, str] = {}
        for done, (name, content) in enumerate(archive.read(places, most_bytes), start=1):
            try:
                row = np.ascontiguousarray(decode(name, content))
                store(scratch, row.data, places[name] * row.nbytes, self.folder)
            except BadFileError as error:
                bad[name] = str(error)
                self.require_few(archive, bad, len(examples))
            self.progress("decoding", done, len(examples))
        # Rows of unreadable files at the end were never written.
        os.ftruncate(scratch, len(examples) * row.nbytes)
        with os.fdopen(os.dup(scratch), "rb") as file:
            return np.memmap(file, row.dtype, "r", shape=(len(examples), *row.shape)), bad

    def open_scratch(self) -> int:
        """Return the number of a temporary file, which is closed at the end of the context."""
        # Beside the target: a node's /tmp may be memory, or too small.
        file = tempfile.TemporaryFile(dir=str(self.folder), buffering=0)  # noqa: SIM115
        return self.enter_context(file).fileno()

    def require_few(
        self, archive: Archive, bad: dict[str, str], total: int, what: str = "files"
    ) -> None:
        """Raise DataError if more than the allowed fraction of ``total`` is unreadable."""
        # Called after each bad file, so that a wrong source fails at once.
        if len(bad) <= self._max_bad * total:
            return
        names = sorted(bad)[:3]
        raise DataError(
            f"{archive.path}: {len(bad)} of {total} {what} cannot be read, more than "
            f"{self._max_bad:.1%}, among them {', '.join(names)} ({bad[names[0]]}). Repair them, "
            "or raise --max-bad."
        )


class Block(NamedTuple):
    """Some examples to predict."""

    names: Sequence[str | int] | None
    """None: examples are named by their numbers."""
    x: np.ndarray
    """``[b, features]``, not normalised."""
    classes: Sequence[str] | None
    """The true classes; None if unknown."""


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


def decode_files(
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
    contents = archive.read(names, most_bytes)
    step = rows_per_block(prod(request.shape))
    while part := list(islice(contents, step)):
        rows: dict[str, np.ndarray] = {}
        with context():
            for name, content in part:
                try:
                    rows[name] = decode(name, content).reshape(-1).astype(np.float32)
                except BadFileError as error:
                    request.skipped(name, str(error))
        if rows:
            yield Block(names=list(rows), x=np.stack(list(rows.values())), classes=None)


def assign_splits(examples: list[Example]) -> list[Example]:
    """Return the examples, sorted by name, in a train and a drawn test split."""
    examples = sorted(examples, key=lambda example: example.name)
    _, codes = np.unique([example.label for example in examples], return_inverse=True)
    # Drawn after sorting: a tar file and its folder give the same splits.
    test = draw_test(len(examples), codes)
    assigned = []
    for example, is_test in zip(examples, test):
        assigned.append(replace(example, split="test" if is_test else "train"))
    return assigned


def recognise_split(name: str) -> str:
    """Return the split that a name means; "" for none."""
    return _MEANING.get(name.lower(), "")


def find_common_folder(names: Collection[str], splits: bool = True) -> str:
    """Return the folder that holds all class folders or, with ``splits``, split folders: "" or a
    path ending in "/"."""
    paths = [name.split("/")[:-1] for name in names]
    above: list[str] = []
    while True:
        below = [path[len(above) :] for path in paths if len(path) > len(above)]
        outermost = {path[0] for path in below}
        # The last folder before the files is a class, even if it is the only one.
        if len(outermost) != 1 or max(map(len, below)) == 1:
            break
        folder = outermost.pop()
        if splits and recognise_split(folder):
            break
        above.append(folder)
    return "".join(f"{folder}/" for folder in above)


def read_class_folders(
    archive: Archive, endings: tuple[str, ...], notes: Notes, splits: bool = True
) -> list[Example]:
    """Return the files with the given endings as examples; folders name the classes, as in
    torchvision's ImageFolder.

    Below the common folder, a path is SPLIT/CLASS/... or CLASS/..., whose split is ""; without
    ``splits`` it is CLASS/... Files in no folder below the common folder are skipped. Raises
    DataError for other paths.
    """
    names = [name for name in archive.names if name.lower().endswith(endings)]
    common = find_common_folder(names, splits)
    paths: dict[str, list[str]] = {}
    for name in names:
        path = name.removeprefix(common).split("/")[:-1]
        if name.startswith(common) and path:
            paths[name] = path
    if splits and _are_in_splits(paths.values()):
        return [_read_path_with_split(archive, name, path) for name, path in paths.items()]
    examples = []
    for name, path in paths.items():
        # The only folder of a file is its class, whatever its name.
        if len(path) > 1:
            exception = "" if splits else ", unless a list names its files"
            _refuse_splits(archive, name, path, exception)
        # Interned: a million files have a few class names.
        examples.append(Example(name, intern(path[0]), ""))
    if splits:
        _require_no_splits({example.label for example in examples}, archive)
    if common:
        notes.assume(f"classes are the folders in {common}")
    return examples


def _are_in_splits(paths: Collection[list[str]]) -> bool:
    """Return True if the outermost folders are splits: one of those with folders, or all."""
    with_folders = {path[0] for path in paths if len(path) > 1}
    return any(map(recognise_split, with_folders)) or all(
        recognise_split(path[0]) for path in paths
    )


def _read_path_with_split(archive: Archive, name: str, path: list[str]) -> Example:
    """Return the example at SPLIT/CLASS/..., or raise DataError."""
    outer, *folders = path
    split = recognise_split(outer)
    if not split:
        raise DataError(
            f"{archive.path} has train/ or test/, but {name} is in neither. Move it into one "
            "or remove it."
        )
    if not folders:
        raise DataError(
            f"{archive.path}: {name} is not in a class folder; it must be {outer}/CLASS/FILE."
        )
    _refuse_splits(archive, name, folders[1:])
    return Example(name, intern(folders[0]), split)


def _refuse_splits(
    archive: Archive, name: str, folders: Sequence[str], exception: str = ""
) -> None:
    """Raise DataError if one of the folders of a file is named like a split."""
    for folder in folders:
        if recognise_split(folder):
            raise DataError(
                f"{archive.path}: {name} has a folder {folder}/, but a split is "
                f"{folder}/CLASS/FILE{exception}. Move or rename it."
            )


def _require_no_splits(classes: Collection[str], archive: Archive) -> None:
    """Raise DataError if class folders seem to be splits, such as seg_train and seg_test.

    They do if each name has a word for a split, or if two names differ in such a word alone.
    """
    stems: dict[tuple[str, ...], list[str]] = {}
    named = []
    for name in sorted(classes):
        words = re.findall(r"[a-z]+|[0-9]+", name.lower())
        # Names such as seg_train and seg_test are alike without the words for splits.
        stem = tuple(word for word in words if not recognise_split(word))
        stems.setdefault(stem, []).append(name)
        if len(stem) < len(words):
            named.append(name)
    suspects = named
    if len(named) < len(classes):
        suspects = []
        for alike in stems.values():
            if len(alike) > 1:
                suspects += [name for name in alike if name in named]
    if suspects and len(classes) > 1:
        raise DataError(
            f"{archive.path}: the folders {list_first(suspects)} are named like splits. Rename "
            "them train, test and validation, with a folder for each class inside."
        )


def ensure_test_examples(
    archive: Archive, examples: list[Example], notes: Notes, classes: Collection[str] = ()
) -> list[Example]:
    """Return the examples. Without test examples, validation examples become test examples.

    Raises DataError for a class that no training example has, and that ``classes`` lacks.
    """
    if {example.split for example in examples} == {"train", "validation"}:
        notes.assume("validation examples are used for testing: there are no others")
        names = {"train": "train", "validation": "test"}
        examples = [replace(example, split=names[example.split]) for example in examples]
    # A class that only other splits have cannot be predicted, and is most often a folder out of
    # place.
    trained = {example.label for example in examples if example.split == "train"} | {*classes}
    unknown = next((example for example in examples if example.label not in trained), None)
    if trained and unknown:
        raise DataError(
            f"{archive.path}: {unknown.name} is of class {unknown.label}, which train/ lacks. "
            "Arrange files as SPLIT/CLASS/FILE, or remove it; lists of labels (Tiny ImageNet's "
            "val_annotations.txt) are not read."
        )
    return examples
